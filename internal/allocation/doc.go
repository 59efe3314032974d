// Package allocation keeps the records of what the advertiser promised to
// which container: the only way in which a pod comes to a device.
//
// A record is one small file in a folder that only root (SYSTEM and
// Administrators on Windows) can read, named by the digest of an unguessable [Token]. The
// advertiser writes it when the kubelet calls Allocate, and hands the token to
// the container in a variable. Who adjusts the container's spec binds the
// record to the first pod UID and container name that presents the token; any
// other that presents it is refused.
//
// Binding is a second file beside the first, made so that only one writer can
// win. So a record file never changes after it was written, and readers need
// no lock against its writer, on any operating system.
package allocation
