package win32

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// HCSProperties returns the basic properties of the Host Compute Service, in JSON.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func HCSProperties() (string, error) {
	if err := available(procHcsGetServiceProperties); err != nil {
		return "", err
	}
	query, _ := windows.UTF16PtrFromString(`{"PropertyTypes":["Basic"]}`) // It has no NUL.
	var answer *uint16
	err := hresultError(hcsGetServiceProperties(query, &answer))
	defer func() { _, _ = windows.LocalFree(windows.Handle(unsafe.Pointer(answer))) }() // Cannot fail.
	text := windows.UTF16PtrToString(answer)
	if err != nil {
		return "", fmt.Errorf("read the Host Compute Service's properties: %w: %.500s", err, text)
	}
	return text, nil
}
