package win32

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// HCSServiceProperties returns the JSON document that the Host Compute Service
// answers with when it is asked for its basic properties.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func HCSServiceProperties() (string, error) {
	if err := available(procHcsGetServiceProperties); err != nil {
		return "", err
	}
	query, err := windows.UTF16PtrFromString(`{"PropertyTypes":["Basic"]}`)
	if err != nil {
		return "", fmt.Errorf("ask the Host Compute Service for its properties: %w", err)
	}
	var answer *uint16
	err = failed(hcsGetServiceProperties(query, &answer))
	var document string
	if answer != nil { // On failure too: it says what went wrong.
		document = windows.UTF16PtrToString(answer)
		_, _ = windows.LocalFree(windows.Handle(unsafe.Pointer(answer))) // Fails for no block that Windows made.
	}
	if err != nil {
		if document != "" {
			return "", fmt.Errorf("ask the Host Compute Service for its properties: %w: %.500s", err, document)
		}
		return "", fmt.Errorf("ask the Host Compute Service for its properties: %w", err)
	}
	return document, nil
}
