module github.com/directx-nri/directx-nri/test/dxg/double

go 1.26.0

require (
	github.com/hanwen/go-fuse/v2 v2.12.1
	golang.org/x/sys v0.49.0
)
