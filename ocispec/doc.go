// Package ocispec has the [Edits] of a container, and applies them to the JSON of an OCI runtime spec;
// applying them twice changes nothing. Package gpuedits builds the edits for devices of package
// discovery, and package modes says which of them this node's system can assign. Package shim links this
// package, so other forms of edits are elsewhere: runflags for ctr and nerdctl, and CDI.
package ocispec
