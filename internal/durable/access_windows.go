package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/windows"
)

// privateSDDL grants SYSTEM and Administrators full control, inherited by all
// content, and inherits nothing from above.
// https://learn.microsoft.com/windows/win32/secauthz/security-descriptor-string-format
const privateSDDL = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// trustedInstaller owns the files of Windows itself.
// https://learn.microsoft.com/windows/win32/services/service-security-and-access-rights
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// writeAccess is the set of rights to change a file or the content of a directory.
// https://learn.microsoft.com/windows/win32/fileio/file-access-rights-constants
const writeAccess = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | fileDeleteChild |
	windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

const (
	fileDeleteChild = 0x40
	// An access-allowed entry with a condition after its SID.
	// https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-access_allowed_callback_ace
	accessAllowedCallback = 9
)

// createPrivate creates each directory with its security descriptor, so that it is
// never open to others.
func createPrivate(dir string) error {
	descriptor, err := windows.SecurityDescriptorFromString(privateSDDL)
	if err != nil {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
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

// CheckPrivate returns an error that matches [ErrNotPrivate] when dir is not a
// directory or an account other than the system's, its administrators' and the
// calling user's can write to it.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check %s: %w", dir, err)
	}
	if !info.IsDir() {
		return &AccessError{dir, ErrNotPrivate, "not a directory", "remove it"}
	}
	return checkWriters(dir, dir, ErrNotPrivate)
}

// CheckFile returns an error that matches [ErrUntrusted] when an account other than
// the system's, its administrators' and the calling user's owns the file at path,
// can write to it, or can put another file into its directory. Directories below
// C:\ProgramData let every user do so unless their access is restricted.
func CheckFile(path string) error {
	dir := filepath.Dir(path)
	if err := checkWriters(dir, dir, ErrUntrusted); err != nil {
		return err
	}
	return checkWriters(path, dir, ErrUntrusted)
}

// CheckOwner is [CheckFile] for the owner of path alone. Volumes of HostProcess
// pods inherit write access for all users from C:\.
func CheckOwner(path string) error {
	accounts, err := trustedAccounts()
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("check %s: read its owner: %w", path, err)
	}
	other, err := otherOwner(descriptor, accounts)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	if other != "" {
		return &AccessError{path, ErrUntrusted, "it belongs to " + other, "give it to Administrators when you trust its content"}
	}
	return nil
}

// checkWriters returns reason, and how to restrict the access to dir, when another
// account can write to path.
func checkWriters(path, dir string, reason error) error {
	accounts, err := trustedAccounts()
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	other, err := otherWriter(path, accounts)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	if other != "" {
		return &AccessError{path, reason, other + " can change it", fmt.Sprintf(
			`when you trust what is there, restrict its access, in cmd.exe, with: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[1]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`, dir)}
	}
	return nil
}

// trustedAccounts returns the accounts that may write to trusted files.
func trustedAccounts() ([]*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, fmt.Errorf("read the current user: %w", err)
	}
	accounts := []*windows.SID{user.User.Sid}
	for _, kind := range []windows.WELL_KNOWN_SID_TYPE{
		windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid,
		// Placeholders for the owner, who is checked.
		windows.WinCreatorOwnerSid, windows.WinCreatorOwnerRightsSid,
	} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			return nil, fmt.Errorf("look up the system's accounts: %w", err)
		}
		accounts = append(accounts, sid)
	}
	sid, err := windows.StringToSid(trustedInstaller)
	if err != nil {
		return nil, fmt.Errorf("look up the system's accounts: %w", err)
	}
	return append(accounts, sid), nil
}

// otherWriter returns the SID of the first account that is not in accounts and can
// write to the file or directory at path, "" when there is none.
func otherWriter(path string, accounts []*windows.SID) (string, error) {
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", fmt.Errorf("read its access control list: %w", err)
	}
	if other, err := otherOwner(descriptor, accounts); err != nil || other != "" {
		return other, err
	}
	list, _, err := descriptor.DACL()
	if errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) || err == nil && list == nil {
		return "everyone", nil
	}
	if err != nil {
		return "", fmt.Errorf("read its access control list: %w", err)
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return "", fmt.Errorf("read its access control list: %w", err)
		}
		allows := entry.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceType == accessAllowedCallback
		if !allows || entry.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 || entry.Mask&writeAccess == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !contains(accounts, sid) {
			return sid.String(), nil
		}
	}
	return "", nil
}

// otherOwner returns the SID of the owner, "" when it is one of accounts.
func otherOwner(descriptor *windows.SECURITY_DESCRIPTOR, accounts []*windows.SID) (string, error) {
	owner, _, err := descriptor.Owner()
	if err != nil {
		return "", fmt.Errorf("read its owner: %w", err)
	}
	if contains(accounts, owner) {
		return "", nil
	}
	return owner.String(), nil
}

func contains(list []*windows.SID, sid *windows.SID) bool {
	return slices.ContainsFunc(list, sid.Equals)
}
