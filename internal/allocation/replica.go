package allocation

import (
	"crypto/sha256"
	"encoding/hex"
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

const keyBytes = 6 // of the hash in a GPU's key

// GPUKey returns what the IDs of a GPU's replicas begin with. It is the same for all spellings of the
// instance ID, which only differ in case. It is short, because the kubelet accepts a list of 4 MiB.
func GPUKey(instanceID string) string {
	hash := sha256.Sum256([]byte(strings.ToUpper(instanceID)))
	return hex.EncodeToString(hash[:keyBytes])
}

// ReplicaID returns the ID of one replica of the GPU with a key. It is the same after every restart.
func ReplicaID(gpuKey string, number int) string { return gpuKey + "-" + strconv.Itoa(number) }

// ParseReplicaID returns the key of the GPU and the number, from 0, of a replica ID; ok is false if id
// is not the ID of a replica.
func ParseReplicaID(id string) (gpuKey string, number int, ok bool) {
	gpuKey, digits, _ := strings.Cut(id, "-")
	hash, hashErr := hex.DecodeString(gpuKey)
	number, err := strconv.Atoi(digits)
	if hashErr != nil || len(hash) != keyBytes || err != nil || number < 0 || ReplicaID(gpuKey, number) != id {
		return "", 0, false
	}
	return gpuKey, number, true
}
