package allocation

import (
	"strconv"
	"strings"
)

// Replica is one replica of one GPU.
type Replica struct {
	// ID is the replica's device ID in the device plugin API.
	ID string `json:"id"`
	// InstanceID is the PnP instance ID of the replica's GPU.
	InstanceID string `json:"instanceID"`
	// UUID is the driver's identifier of the GPU, "" if unknown.
	UUID string `json:"uuid,omitempty"`
}

// idSeparator separates the instance ID from the number in a replica ID. An instance
// ID may contain it, so the last occurrence is the separator.
const idSeparator = "::"

// ReplicaID returns the ID of one replica of a GPU. It is the same after every restart.
func ReplicaID(instanceID string, number int) string {
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
