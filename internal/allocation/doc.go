// Package allocation keeps the allocation records: which replicas the kubelet
// allocated to which container. A record is the only way for a pod to get a device.
//
// A record is a small file in a directory that only root (SYSTEM and Administrators on Windows) can
// write to. Its name is its random [ID]. The advertiser writes the record when the kubelet calls
// Allocate, and gives the container the ID in an annotation, which the kubelet alone can set. The
// program that edits the container's spec binds the record to the first pod UID and container
// name that present the ID; any other container that presents it is refused.
//
// A binding is a second file beside the record, created so that only one writer
// succeeds. So a record file never changes, and readers need no lock.
package allocation
