// Command etcd is the server of etcd's own module, under the name that its
// releases give it: of the module's path the go command would make "server".
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
