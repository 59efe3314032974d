package advertiser

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
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

// ParseReplicaID returns the instance ID and the number, from 0, of a replica ID; ok
// is false if id is not the ID of a replica.
func ParseReplicaID(id string) (instanceID string, number int, ok bool) {
	i := strings.LastIndex(id, idSeparator)
	if i < 0 {
		return "", 0, false
	}
	digits := id[i+len(idSeparator):]
	// No resource has more than 1024, 10 bits, replicas of a GPU.
	n, err := strconv.ParseUint(digits, 10, 10)
	if err != nil || len(digits) > 1 && digits[0] == '0' {
		return "", 0, false
	}
	return id[:i], int(n), true
}

// InstanceIDs returns the GPUs of replicas, each once.
func InstanceIDs(replicaIDs []string) (ids []string) {
	for _, replica := range replicaIDs {
		if id, _, ok := ParseReplicaID(replica); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// SocketName returns the name of a resource's socket in the kubelet's device plugin
// directory. It is short because the whole path is limited to 107 bytes.
func SocketName(resource string) string {
	name, ours := strings.CutPrefix(resource, "directx.microsoft.com/")
	if !ours || len(name) > 10 {
		digest := sha256.Sum256([]byte(resource))
		name = hex.EncodeToString(digest[:5])
	}
	return "directx-" + name + ".sock"
}
