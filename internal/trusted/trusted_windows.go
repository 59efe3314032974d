package trusted

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// trustedInstaller owns what Windows itself has installed.
// https://learn.microsoft.com/windows/win32/services/service-security-and-access-rights
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// changes are the rights by which a file, or what a folder has, becomes another.
// https://learn.microsoft.com/windows/win32/fileio/file-access-rights-constants
const changes = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | fileDeleteChild |
	windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

const (
	fileDeleteChild = 0x40
	// An access-allowed entry with a condition behind its SID.
	// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-access_allowed_callback_ace
	accessAllowedCallback = 9
)

func check(path string) error {
	system, err := systemAccounts()
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	folder := filepath.Dir(path)
	for _, object := range []string{folder, path} {
		other, err := otherWriter(object, system)
		if err != nil {
			return fmt.Errorf("check %s: %w", object, err)
		}
		if other != "" {
			return fmt.Errorf(`check %s: %w: %s can change it; when you trust what is there, close it, in cmd.exe, with: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[4]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`,
				object, ErrUntrusted, other, folder)
		}
	}
	return nil
}

// systemAccounts returns those that may change what we trust.
func systemAccounts() ([]*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, fmt.Errorf("read who we are: %w", err)
	}
	accounts := []*windows.SID{user.User.Sid}
	// An object's creator and owner are its owner, who is looked at.
	for _, kind := range []windows.WELL_KNOWN_SID_TYPE{
		windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid, windows.WinCreatorOwnerSid, windows.WinCreatorOwnerRightsSid,
	} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			return nil, fmt.Errorf("name the system's accounts: %w", err)
		}
		accounts = append(accounts, sid)
	}
	sid, err := windows.StringToSid(trustedInstaller)
	if err != nil {
		return nil, fmt.Errorf("name the system's accounts: %w", err)
	}
	return append(accounts, sid), nil
}

// otherWriter returns the SID of an account that is none of the system's and can
// change the file or folder at path, "" when there is none.
func otherWriter(path string, system []*windows.SID) (string, error) {
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", fmt.Errorf("read who can change it: %w", err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return "", fmt.Errorf("read its owner: %w", err)
	}
	if !isOneOf(owner, system) {
		return owner.String(), nil
	}
	list, _, err := descriptor.DACL()
	if errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) || err == nil && list == nil {
		return "everybody", nil
	}
	if err != nil {
		return "", fmt.Errorf("read who can change it: %w", err)
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return "", fmt.Errorf("read who can change it: %w", err)
		}
		allows := entry.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceType == accessAllowedCallback
		if !allows || entry.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 || entry.Mask&changes == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !isOneOf(sid, system) {
			return sid.String(), nil
		}
	}
	return "", nil
}

func isOneOf(sid *windows.SID, list []*windows.SID) bool {
	for _, other := range list {
		if sid.Equals(other) {
			return true
		}
	}
	return false
}

func checkOwner(path string) error {
	system, err := systemAccounts()
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("check %s: read its owner: %w", path, err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return fmt.Errorf("check %s: read its owner: %w", path, err)
	}
	if !isOneOf(owner, system) {
		return fmt.Errorf("check %s: %w: it belongs to %s; give it to Administrators when you trust its content", path, ErrUntrusted, owner)
	}
	return nil
}
