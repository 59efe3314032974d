package advertiser

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// idSeparator separates the instance ID from the number in a replica ID. An instance
// ID may contain it, so the last one is the separator.
const idSeparator = "::"

// replicaID returns the ID of one replica of a GPU. It is the same after every
// restart.
func replicaID(instanceID string, number int) string {
	return instanceID + idSeparator + strconv.Itoa(number)
}

// normalizeID returns the form in which instance IDs are compared. PnP ignores case.
func normalizeID(instanceID string) string { return strings.ToUpper(instanceID) }

// ParseReplicaID returns the instance ID and the number, from 0, of a replica ID; ok
// is false if id is not the ID of a replica.
func ParseReplicaID(id string) (instanceID string, number int, ok bool) {
	i := strings.LastIndex(id, idSeparator)
	if i < 0 {
		return "", 0, false
	}
	digits := id[i+len(idSeparator):]
	if len(digits) == 0 || len(digits) > len("1023") || digits[0] == '0' && len(digits) > 1 {
		return "", 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return "", 0, false
		}
		number = 10*number + int(c-'0')
	}
	return id[:i], number, true
}

// SocketName returns the name of a resource's socket in the kubelet's device plugin
// directory. It is short because the whole path is limited to 107 bytes.
func SocketName(resource string) string {
	switch resource {
	case ResourceDisplay:
		return "directx-display.sock"
	case ResourceCompute:
		return "directx-compute.sock"
	}
	digest := sha256.Sum256([]byte(resource))
	return "directx-" + hex.EncodeToString(digest[:5]) + ".sock"
}
