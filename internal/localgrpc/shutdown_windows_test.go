package localgrpc

import "net"

// shutDown does nothing: processes do not inherit l.
func shutDown(*net.UnixListener) error { return nil }
