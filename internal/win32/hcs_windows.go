package win32

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// HCSServiceProperties returns the basic properties of the Host Compute Service as JSON.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func HCSServiceProperties() (string, error) {
	if err := available(procHcsGetServiceProperties); err != nil {
		return "", err
	}
	query, err := windows.UTF16PtrFromString(`{"PropertyTypes":["Basic"]}`)
	if err != nil {
		return "", fmt.Errorf("read the Host Compute Service's properties: %w", err)
	}
	var answer *uint16
	err = hresultError(hcsGetServiceProperties(query, &answer))
	var document string
	if answer != nil { // On failure it has the cause.
		document = windows.UTF16PtrToString(answer)
		_, _ = windows.LocalFree(windows.Handle(unsafe.Pointer(answer))) // Cannot fail.
	}
	if err != nil && document != "" {
		err = fmt.Errorf("%w: %.500s", err, document)
	}
	if err != nil {
		return "", fmt.Errorf("read the Host Compute Service's properties: %w", err)
	}
	return document, nil
}
