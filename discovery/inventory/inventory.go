// Package inventory is the [discovery.Source] that reads the devices from a
// file: for simulated nodes, for CI, and for nodes where a fixed description
// is wanted in place of discovery.
//
// The file is YAML, one document. Only apiVersion, kind, devices and each
// device's instanceID are required. What the fields mean stands with
// [discovery.Device].
//
//	apiVersion: directx.microsoft.com/v1alpha1
//	kind: Inventory
//	devices:
//	  - instanceID: 'PCI\VEN_10DE&DEV_1EB8&…' # unique; at most 200 characters, no "::"
//	    description: NVIDIA Tesla T4
//	    vendorID: 0x10DE                      # or in decimal; default: the PCI\VEN_xxxx of the instance ID
//	    locationPath: PCIROOT(0)#PCI(1B00)    # unique
//	    luid: 0x00000000_0x0000C2F5           # or one number; unique
//	    uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 # NVIDIA's; unique
//	    pciAddress: 0000:1B:00.0              # segment, bus, device and function, hexadecimal; unique
//	    driver:
//	      version: 31.0.15.5222               # 1 to 4 numbers
//	      storePath: C:\Windows\System32\DriverStore\FileRepository\…
//	    dedicatedMemory: 15Gi                 # bytes, or a number with Ki, Mi, Gi or Ti
//	    numaNode: 0                           # default: not known
//	    integrated: false
//	    detachable: false
//	    display: true
//	    compute: true
//	    health: {reason: driver is not started (code 10)} # default: healthy
//	    runtimeFiles:                         # sources are relative to storePath
//	      system32:                           # a plain name is mounted under its own name
//	        - nvcudadebugger.dll
//	        - {source: nvcuda_loader64.dll, destination: nvcuda.dll}
//	      sysWOW64: []
//	    linux:                                # a plain path has the same place in the container
//	      deviceNodes: [/dev/dxg, {path: /dev/dxg, containerPath: /dev/dxg1}]
//	      libraries: [/usr/lib/wsl/drivers, {source: /opt/d3d/libd3d12.so, destination: /usr/lib/wsl/lib/libd3d12.so}]
//
// Reading is strict: an unknown key, a value of another type, a duplicate, an
// empty file is an error, and no value is guessed. A node without devices says
// `devices: []`. Anchors and aliases work; merge keys (<<) do not.
//
// Whoever replaces the file while it is in use does best to write another file
// beside it and to rename that over it. A ConfigMap volume does as much. A
// file rewritten in place is read once it has not changed for a moment, so a
// writer that pauses in the middle can be overtaken.
package inventory

// What the head of an inventory file says.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Inventory"
)

// Limits of an inventory file. They are far beyond any node, and keep a wrong
// file from taking the node's memory.
const (
	maxFileSize   = 4 << 20 // bytes
	maxDevices    = 1024
	maxFiles      = 512     // in one list of files
	maxValues     = 1 << 16 // values of the whole file, aliases counted each time
	maxInstanceID = 200     // characters, MAX_DEVICE_ID_LEN
	maxText       = 256     // characters of a text for people
	maxPath       = 4095    // bytes of a path
	maxNUMANode   = 65535   // Windows counts nodes in a USHORT
)
