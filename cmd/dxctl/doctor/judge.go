package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/winpath"
)

// What is looked at, by the names that findings have.
const (
	CheckConfig       = "config"             // our config.yaml
	CheckResources    = "resources"          // its rules and the GPUs fit each other
	CheckExtraMounts  = "extra-mounts"       // the folders for pods' further files
	CheckMetrics      = "metrics"            // our programs serve them where they are to
	CheckInventory    = "inventory"          // the inventory file, or the node's answer
	CheckDevices      = "devices"            // GPUs are there and healthy
	CheckDrivers      = "drivers"            // drivers say which files a container needs
	CheckFiles        = "files"              // those files are on disk
	CheckHCS          = "hcs"                // Windows can give single GPUs
	CheckContainerd   = "containerd"         // it runs and answers
	CheckVersion      = "containerd-version" // it is new enough
	CheckFile         = "containerd-config"  // its file is sound
	CheckHandlers     = "handlers"           // runtime handlers go through our shim
	CheckAnnotations  = "annotations"        // they hand on our annotations
	CheckLoaded       = "loaded"             // the running containerd has the file's settings
	CheckShim         = "shim"               // our shim is there and works
	CheckShimVersion  = "shim-version"       // it is of this program's version
	CheckRealShim     = "real-shim"          // the real one is there too
	CheckNRI          = "nri"                // NRI is on
	CheckPlugin       = "plugin"             // our NRI plugin is registered
	CheckKubelet      = "kubelet"            // it takes device plugins
	CheckPodResources = "pod-resources"      // it tells which pods hold what
	CheckAdvertiser   = "advertiser"         // our device plugin runs
	CheckRegistration = "registration"       // the kubelet offers our GPUs
	CheckRecords      = "records"            // the allocation records are sound
	CheckPermissions  = "permissions"        // nobody else can write our folders
	CheckLeftovers    = "leftovers"          // nothing was broken off half way
	CheckSetup        = "setup"              // something of ours is set up at all
	CheckAccess       = "access"             // all of it could be looked at
)

// Verdict is what was found, and for what the node was taken.
type Verdict struct {
	Role Role
	// ServedBy is who gives containers their GPUs, in the order kubelet, nri, shim;
	// none when nothing of ours is set up.
	ServedBy []ServedBy
	// Notes tell what is no fault, and that a person may wonder about.
	Notes []string
	// Checks are the names of what was looked at.
	Checks   []string
	Findings []Finding
}

// Judge returns what is wrong with the node: one finding for one cause, with
// nothing that only follows from another.
func Judge(f Facts) []Finding { return Examine(f).Findings }

// Examine is [Judge] with what the node was taken for.
func Examine(f Facts) Verdict {
	j := &judge{Facts: f, verdict: Verdict{Role: role(f), ServedBy: servedBy(f), Findings: []Finding{}}}
	if len(j.verdict.ServedBy) == 0 && !isClosed(f) {
		j.setup()
	}
	j.config()
	j.devices()
	j.resources()
	j.hostFolders()
	j.windows()
	j.containerd()
	j.metrics()
	if j.served(ServedByShim) {
		j.shim()
	}
	if j.served(ServedByNRI) {
		j.nri()
	}
	if j.verdict.Role == RoleKubernetes && len(j.verdict.ServedBy) > 0 {
		j.kubelet()
	}
	j.records()
	j.permissions()
	j.leftovers()
	j.access()
	return j.verdict
}

// role tells what the node is for. A kubelet that is not running leaves its
// folder, and an advertiser waits in it.
func role(f Facts) Role {
	if f.Role != RoleAuto && f.Role != "" {
		return f.Role
	}
	if f.Kubelet.FolderErr != nil && errors.Is(f.Kubelet.FolderErr, fs.ErrNotExist) {
		return RoleStandalone
	}
	return RoleKubernetes
}

// servedBy tells by whom containers are to get their GPUs.
func servedBy(f Facts) []ServedBy {
	if f.ServedBy != ServedByAuto && f.ServedBy != "" {
		return []ServedBy{f.ServedBy}
	}
	var list []ServedBy
	c := f.Config.Value
	if c.Injection == config.InjectByKubelet && role(f) == RoleKubernetes {
		list = append(list, ServedByKubelet)
		if isRouted(f) {
			list = append(list, ServedByShim)
		}
		return list
	}
	if f.OS != "windows" && c.ServedBy == config.ServedByShim && f.Config.Exists && role(f) == RoleKubernetes {
		return []ServedBy{ServedByShim}
	}
	if f.OS != "windows" && role(f) == RoleKubernetes {
		pluginSeen := f.NRI.PluginErr == nil || f.NRI.Started
		// NRI may be on for others, and in containerd 2 it always is.
		if pluginSeen || f.Containerd.FileErr == nil && f.Containerd.File.NRI && hasTraces(f) {
			list = append(list, ServedByNRI)
		}
	}
	if isRouted(f) || f.OS == "windows" && isInstalled(f) || role(f) == RoleStandalone && isInstalled(f) {
		list = append(list, ServedByShim)
	}
	return list
}

func isRouted(f Facts) bool {
	return slices.ContainsFunc(f.Containerd.File.Handlers, containerdconfig.Handler.Ours) ||
		slices.ContainsFunc(f.Containerd.Loaded, containerdconfig.Handler.Ours)
}

// isInstalled tells that a shim of ours is there, broken or not, or that somebody
// has written a configuration for one.
func isInstalled(f Facts) bool {
	return f.Config.Exists || slices.ContainsFunc(f.Shims, func(s Shim) bool { return !errors.Is(s.Err, fs.ErrNotExist) })
}

// hasTraces tells that something of ours has been on this node.
func hasTraces(f Facts) bool {
	answers := false
	for _, err := range f.Kubelet.Advertiser {
		answers = answers || err == nil
	}
	return answers || isInstalled(f) || len(f.Folders) > 0
}

// isClosed tells that it could not be looked at what is set up.
func isClosed(f Facts) bool {
	return slices.ContainsFunc([]error{f.Containerd.Err, f.Containerd.FileErr, f.NRI.PluginErr, f.Config.Err, f.Kubelet.FolderErr},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
}

// judge is the facts and what is concluded from them so far.
type judge struct {
	Facts
	verdict Verdict
	// denied are what could not be looked at for want of permission.
	denied []string
}

func (j *judge) served(by ServedBy) bool { return slices.Contains(j.verdict.ServedBy, by) }

// looked notes that something was looked at.
func (j *judge) looked(checks ...string) {
	for _, check := range checks {
		if !slices.Contains(j.verdict.Checks, check) {
			j.verdict.Checks = append(j.verdict.Checks, check)
		}
	}
}

// has tells whether one of the checks found something.
func (j *judge) has(checks ...string) bool {
	return slices.ContainsFunc(j.verdict.Findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
}

func (j *judge) problem(check, object, problem, why, fix string) {
	j.add(Finding{Check: check, Severity: Problem, Object: object, Problem: problem, Why: why, Fix: fix})
}

func (j *judge) unknown(check, object, problem, why, fix string) {
	j.add(Finding{Check: check, Severity: Unknown, Object: object, Problem: problem, Why: why, Fix: fix})
}

func (j *judge) add(f Finding) {
	j.looked(f.Check)
	for _, text := range []*string{&f.Object, &f.Problem, &f.Why, &f.Fix} {
		*text = strings.Join(strings.Fields(*text), " ")
	}
	j.verdict.Findings = append(j.verdict.Findings, f)
}

// isDenied notes what could not be looked at for want of permission.
func (j *judge) isDenied(err error, what string) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	if !slices.Contains(j.denied, what) {
		j.denied = append(j.denied, what)
	}
	return true
}

func (j *judge) setup() {
	fix := "run 'dxctl runtime install', then 'dxctl runtime configure --restart'"
	if j.verdict.Role == RoleStandalone {
		fix = "run 'dxctl runtime install'; on a node of a cluster, 'dxctl runtime configure --restart' after it"
	}
	j.problem(CheckSetup, "", "nothing of directx-nri is set up on this node: no NRI plugin runs, no runtime handler goes through our shim, and no shim is installed",
		"no container of this node can have a GPU", fix)
}

// restart says how containerd is restarted.
func (j *judge) restart() string {
	if j.OS == "windows" {
		return "in PowerShell: Restart-Service containerd"
	}
	return "run 'systemctl restart containerd'"
}

// ownFix says how a file or folder is closed to others.
func ownFix(os, path string) string {
	if os == "windows" {
		return fmt.Sprintf(`when you trust what is there, in cmd.exe: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[1]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F; or else remove it`, path)
	}
	return fmt.Sprintf("when you trust what is there: chown root: %s && chmod go-w %[1]s; or else remove it", path)
}

// fileFix says how a file is closed to others. On Windows that is its folder,
// without which others put another in its place.
func fileFix(os, path string) string {
	if os == "windows" {
		path = folderOf(os, path)
	}
	return ownFix(os, path)
}

func folderOf(os, path string) string {
	if os == "windows" {
		return winpath.Dir(path)
	}
	return filepath.Dir(path)
}

func remove(os, path string) string {
	if os == "windows" {
		return `del "` + path + `"`
	}
	return "rm " + path
}

func named(d GPU) string {
	if d.Description == "" {
		return d.Name()
	}
	return d.Name() + " (" + d.Description + ")"
}

// few lists the first of many.
func few(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

func also(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// numbers returns the first two of a version such as "v1.7.35".
func numbers(version string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	return major, minor, err == nil
}

// isBefore tells whether major.minor is older than 1.thanMinor.
func isBefore(major, minor, thanMinor int) bool { return major < 1 || major == 1 && minor < thanMinor }

// KnowsNRI tells whether a containerd of this version has NRI. What is no version is
// not known to be too old.
func KnowsNRI(version string) bool {
	major, minor, ok := numbers(version)
	return !ok || !isBefore(major, minor, 7)
}

// Result is what a verdict comes to.
type Result string

// The results.
const (
	Sound    Result = "sound"
	Findings Result = "findings"
	NotKnown Result = "unknown"
)

// Result returns what the verdict comes to: what is wrong counts more than what
// is not known.
func (v Verdict) Result() Result {
	switch {
	case len(v.Findings) == 0:
		return Sound
	case slices.ContainsFunc(v.Findings, func(f Finding) bool { return f.Severity == Problem }):
		return Findings
	}
	return NotKnown
}
