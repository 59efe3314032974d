package access

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/windows"
)

// privateSDDL grants SYSTEM and Administrators full control, inherited by all content, and inherits
// nothing from above.
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format
const privateSDDL = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// trustedInstaller owns the files of Windows itself.
// https://learn.microsoft.com/windows/win32/services/service-security-and-access-rights
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// writeAccess is the set of rights to change a file or the content of a directory.
// https://learn.microsoft.com/windows/win32/fileio/file-access-rights-constants
const writeAccess = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | fileDeleteChild |
	windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// addAccess is the part of writeAccess that only adds to a directory.
const addAccess = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA

const (
	fileDeleteChild = 0x40
	// An access-allowed entry with a condition after its SID.
	// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-access_allowed_callback_ace
	accessAllowedCallback = 9
)

// createPrivate creates each missing directory with its security descriptor, so that other users
// never have access to it.
func createPrivate(dir string) error {
	descriptor, err := windows.SecurityDescriptorFromString(privateSDDL)
	name, nameErr := windows.UTF16PtrFromString(dir)
	if err = errors.Join(err, nameErr); err != nil {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	err = windows.CreateDirectory(name, &attributes)
	if parent := filepath.Dir(dir); errors.Is(err, windows.ERROR_PATH_NOT_FOUND) && parent != dir {
		if err := createPrivate(parent); err != nil {
			return err
		}
		err = windows.CreateDirectory(name, &attributes)
	}
	if err != nil && !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	return nil
}

// Copy gives f the access control list of the file at path. Inherited entries are inherited
// from the directory again.
func Copy(path string, f *os.File) error {
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	list, _, err := descriptor.DACL()
	control, _, controlErr := descriptor.Control()
	if err = errors.Join(err, controlErr); err != nil {
		return err
	}
	information := windows.SECURITY_INFORMATION(windows.UNPROTECTED_DACL_SECURITY_INFORMATION)
	if control&windows.SE_DACL_PROTECTED != 0 {
		information = windows.PROTECTED_DACL_SECURITY_INFORMATION
	}
	return windows.SetNamedSecurityInfo(f.Name(), windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|information,
		nil, nil, list, nil)
}

// CheckPrivate is [CheckTrusted] for a directory: the error also matches [ErrUntrusted] when dir is a file or a link.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("check %s: %w", dir, err)
	case !info.IsDir():
		return newError(dir, "not a directory")
	}
	_, err = CheckTrusted("", dir)
	return err
}

// CheckOwner returns an error that matches [ErrUntrusted] when an account other than the system's, its
// administrators' and the calling user's owns path.
func CheckOwner(path string) error { return check(path, 0) }

// CheckTrusted returns an error that matches [ErrUntrusted] when an account other than the system's, its
// administrators' and the calling user's can change or replace the file or directory at path or a directory above
// it, or can put another file beside it. Its result is path.
func CheckTrusted(_, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("check %s: %w", path, err)
	}
	rights := uint32(writeAccess)
	for at := path; ; at = filepath.Dir(at) {
		if err := check(at, rights); err != nil {
			return "", err
		}
		parent := filepath.Dir(at)
		if parent == at {
			return path, nil
		}
		if at != path || info.IsDir() {
			rights = replaceAccess(parent)
		}
	}
}

// replaceAccess is the set of rights to replace what is in a directory. All users may add to C:\ and C:\ProgramData,
// and a root cannot be deleted.
func replaceAccess(dir string) uint32 {
	if filepath.Dir(dir) == dir {
		return writeAccess &^ (addAccess | windows.DELETE)
	}
	return writeAccess &^ addAccess
}

// trustedAccounts returns the accounts that may write to trusted files.
func trustedAccounts() ([]*windows.SID, error) {
	user, userErr := windows.GetCurrentProcessToken().GetTokenUser()
	installer, err := windows.StringToSid(trustedInstaller)
	if err := errors.Join(userErr, err); err != nil {
		return nil, err
	}
	accounts := []*windows.SID{user.User.Sid, installer}
	for _, kind := range []windows.WELL_KNOWN_SID_TYPE{
		windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid,
		// Placeholders for the owner, who is checked.
		windows.WinCreatorOwnerSid, windows.WinCreatorOwnerRightsSid,
	} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			return nil, err
		}
		accounts = append(accounts, sid)
	}
	return accounts, nil
}

// check returns an error that matches [ErrUntrusted] when an account that is not trusted owns the file or directory at
// path, or has one of the rights to it.
func check(path string, rights uint32) error {
	const parts = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION
	var sid string
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, parts)
	if err == nil {
		sid, err = findUntrusted(descriptor, rights)
	}
	switch {
	case err != nil:
		return fmt.Errorf("check the owner and the access control list of %s: %w", path, err)
	case sid != "":
		return newError(path, sid+" owns it or can change it")
	}
	return nil
}

// findUntrusted returns the SID of an account that is not trusted and, by the descriptor, is the owner or has one of the
// rights. It returns "" if there is none.
func findUntrusted(descriptor *windows.SECURITY_DESCRIPTOR, rights uint32) (string, error) {
	accounts, err := trustedAccounts()
	if err != nil {
		return "", err
	}
	trusted := func(sid *windows.SID) bool { return slices.ContainsFunc(accounts, sid.Equals) }
	owner, _, err := descriptor.Owner()
	switch {
	case err != nil:
		return "", err
	case !trusted(owner):
		return owner.String(), nil
	case rights == 0:
		return "", nil
	}
	list, _, err := descriptor.DACL()
	if errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) || err == nil && list == nil {
		return "everyone", nil
	}
	if err != nil {
		return "", err
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return "", err
		}
		allows := entry.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceType == accessAllowedCallback
		if !allows || entry.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 || uint32(entry.Mask)&rights == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !trusted(sid) {
			return sid.String(), nil
		}
	}
	return "", nil
}
