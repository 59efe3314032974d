package win32

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// CheckHCS returns nil if the Host Compute Service answers.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func CheckHCS() error {
	if err := available(procHcsGetServiceProperties); err != nil {
		return err
	}
	query, err := windows.UTF16PtrFromString(`{"PropertyTypes":["Basic"]}`)
	if err != nil {
		return fmt.Errorf("read the Host Compute Service's properties: %w", err)
	}
	var answer *uint16
	err = hresultError(hcsGetServiceProperties(query, &answer))
	defer func() { _, _ = windows.LocalFree(windows.Handle(unsafe.Pointer(answer))) }() // Cannot fail.
	if err != nil {
		cause := ""
		if answer != nil {
			cause = windows.UTF16PtrToString(answer)
		}
		return fmt.Errorf("read the Host Compute Service's properties: %w: %.500s", err, cause)
	}
	return nil
}
