// Package shim is the runtime shim, for containers on Windows and of ctr and nerdctl: containerd runs it
// in place of the real one, which it then runs with the same arguments, streams and environment. On
// start, after containerd has written config.json and before anything reads it, the shim makes the same
// decision as the NRI plugin and edits that file. It runs at least twice for each container of a
// node, so it links as little as possible: see TestImports.
package shim
