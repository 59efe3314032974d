package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"directx-nri/internal/allocation"
	"directx-nri/internal/quantity"
	"directx-nri/internal/strictyaml"
)

// Limits of a configuration file.
const (
	// MaxReplicas is how many containers may share a GPU at most.
	MaxReplicas = 1024

	maxValues      = 1 << 14
	maxRules       = 256
	maxPatterns    = 64 // in one list of globs or vendors
	maxGlob        = 256
	maxVendors     = 64
	maxFolders     = 64
	maxExtraMounts = 1024
	// maxRequest is beyond what a node could have.
	maxRequest = MaxReplicas * 1024
)

// ServedByNRI and ServedByShim are who gives containers their GPUs.
const (
	ServedByNRI  = "nri"
	ServedByShim = "shim"
)

// draft is a configuration in the making.
type draft struct {
	Config
	preset   string
	replicas int
	rules    []rule
	// without are the vendors whose built-in runtime files are left out.
	without []uint16
	// files are the file's own entries.
	files []RuntimeFiles
}

// rule is a [Resource] before all settings are known.
type rule struct {
	Resource
	// value is nil for a rule that is not the file's.
	value *strictyaml.Value
}

func newDraft() draft { return draft{Config: defaults(), replicas: 1} }

// finish gives what depends on other settings its value.
func (d *draft) finish() {
	if d.Shim.Log == "" {
		d.Shim.Log = filepath.Join(d.StateDir, "shim.log")
	}
	if d.rules == nil {
		for _, r := range presetOf(d.preset).rules() {
			d.rules = append(d.rules, rule{Resource: r})
		}
	}
	for i := range d.rules {
		if d.rules[i].Replicas == 0 {
			d.rules[i].Replicas = d.replicas
		}
		d.Resources = append(d.Resources, d.rules[i].Resource)
	}
	for _, r := range builtInRuntimeFiles() {
		if !slices.Contains(d.without, r.Vendor) {
			d.RuntimeFiles = append(d.RuntimeFiles, r)
		}
	}
	d.RuntimeFiles = append(d.RuntimeFiles, d.files...)
}

// parse makes a configuration of a file's content, nil for none, and of what
// counts more.
func parse(name string, data *[]byte, overrides []Override) (Config, error) {
	r := strictyaml.NewReader(strictyaml.Options{
		Name: name, MaxBytes: maxSize, MaxValues: maxValues,
		Empty: "write apiVersion: " + APIVersion + " and kind: " + Kind, Second: "put everything into one",
	})
	settings := Settings()
	var file sections
	if data != nil {
		file = open(r, *data, settings)
		// What is wrong with the whole file comes alone.
		if file == nil {
			return Config{}, invalidOf(r)
		}
	}
	d := newDraft()
	if err := d.settle(settings, file, overrides); err != nil {
		return Config{}, err
	}
	d.lists(file)
	if err := invalidOf(r); err != nil {
		return Config{}, err
	}
	d.finish()
	d.together(file)
	if err := invalidOf(r); err != nil {
		return Config{}, err
	}
	return d.Config, nil
}

func invalidOf(r *strictyaml.Reader) error {
	var problems strictyaml.Problems
	if errors.As(r.Err(), &problems) {
		return invalid{problems}
	}
	return nil
}

// sections are the file's mappings by their key, the top one by "".
type sections map[string]strictyaml.Object

// The keys that are no settings.
func listKeys() map[string][]string {
	return map[string][]string{
		"":            {"apiVersion", "kind", "resources", "runtimeFiles"},
		"extraMounts": {"hostFolders", "destinations"},
	}
}

// keys returns the keys of each section, in the order of the settings.
func keys(settings []Setting) (names []string, of map[string][]string) {
	of = listKeys()
	for _, s := range settings {
		section, key := split(s.Key)
		if section != "" && !slices.Contains(of[""], section) {
			of[""] = append(of[""], section)
			names = append(names, section)
		}
		of[section] = append(of[section], key)
	}
	return names, of
}

func split(key string) (section, last string) {
	if section, last, found := strings.Cut(key, "."); found {
		return section, last
	}
	return "", key
}

// open reads the file's sections, and returns nil when there are none to read.
func open(r *strictyaml.Reader, data []byte, settings []Setting) sections {
	names, of := keys(settings)
	root, ok := r.Document(data)
	if !ok || !root.Head(APIVersion, Kind, of[""]...) {
		return nil
	}
	top, ok := root.Object(of[""]...)
	if !ok {
		return nil
	}
	file := sections{"": top}
	for _, name := range names {
		if v, ok := top.Get(name); ok {
			if o, ok := v.Object(of[name]...); ok {
				file[name] = o
			}
		}
	}
	return file
}

func (s sections) get(key string) (strictyaml.Value, bool) {
	section, last := split(key)
	o, ok := s[section]
	if !ok {
		return strictyaml.Value{}, false
	}
	return o.Get(last)
}

// settle gives each setting its value. A preset comes first, since it is what the
// others change.
func (d *draft) settle(settings []Setting, file sections, overrides []Override) error {
	for _, o := range overrides {
		if !slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == o.Key }) {
			return &OverrideError{Origin: o.Origin, Err: fmt.Errorf("there is no setting %s", o.Key)}
		}
	}
	preset := slices.IndexFunc(settings, func(s Setting) bool { return s.Key == "preset" })
	if err := d.set(&settings[preset], file, overrides); err != nil {
		return err
	}
	if d.preset != "" {
		d.Assignment = presetOf(d.preset).assignment
	}
	for i := range settings {
		if i == preset {
			continue
		}
		if err := d.set(&settings[i], file, overrides); err != nil {
			return err
		}
	}
	return nil
}

// set gives a setting its value. What the file says must be right even where
// something else counts more.
func (d *draft) set(s *Setting, file sections, overrides []Override) error {
	if v, ok := file.get(s.Key); ok {
		if text, ok := s.read(v); ok {
			if kept, err := s.parse(text); v.Obeys(err) {
				s.at(d).set(kept)
			}
		}
	}
	for _, o := range overrides {
		if o.Key != s.Key {
			continue
		}
		kept, err := s.parse(o.Value)
		if err != nil {
			return &OverrideError{Origin: o.Origin, Err: err}
		}
		s.at(d).set(kept)
	}
	return nil
}

// lists reads what is no scalar.
func (d *draft) lists(file sections) {
	if v, ok := file.get("resources"); ok {
		if d.preset != "" {
			v.Fail("stands beside the preset %s, which has resources of its own; leave one of the two out", d.preset)
		}
		d.resources(v)
	}
	if v, ok := file.get("runtimeFiles"); ok {
		d.runtimeFiles(v)
	}
	if v, ok := file.get("extraMounts.hostFolders"); ok {
		d.ExtraMounts.HostFolders = folders(v, func(p string) (string, error) {
			clean, err := cleanContainerFolder(d.ContainerOS, p)
			if err == nil {
				err = checkHostFolder(d.ContainerOS, clean, d.ownFolders())
			}
			return clean, err
		})
	}
	if v, ok := file.get("extraMounts.destinations"); ok {
		d.ExtraMounts.Destinations = folders(v, func(p string) (string, error) { return cleanContainerFolder(d.ContainerOS, p) })
		if v.IsEmptyList() {
			v.Fail("is empty, which is not nowhere; leave the key out for the usual folders, or set extraMounts.sources: off")
		}
	}
}

// ownFolders are those that no pod may read, wherever they were put.
func (d *draft) ownFolders() []string {
	return []string{d.StateDir, d.RuntimeDir, d.Kubelet.DevicePlugins}
}

// together checks what only all settings together can tell.
func (d *draft) together(file sections) {
	checkRules(d.rules)
	if d.ExtraMounts.Sources == MountHostFolders && len(d.ExtraMounts.HostFolders) == 0 {
		if v, ok := file.get("extraMounts.sources"); ok {
			v.Fail("needs extraMounts.hostFolders, the folders that pods may have files from; add it")
		}
	}
}

func folders(v strictyaml.Value, clean func(string) (string, error)) []string {
	items, _ := v.Items(maxFolders)
	var list []string
	for _, item := range items {
		if folder, ok := strictyaml.Read(item, strictyaml.Value.Name, clean); ok {
			list = append(list, folder)
		}
	}
	return list
}

func (d *draft) resources(v strictyaml.Value) {
	items, ok := v.Items(maxRules)
	if !ok {
		return
	}
	if len(items) == 0 {
		v.Fail("is empty, so that no GPU is offered; write a rule, or leave the key out for the usual two")
		return
	}
	for _, item := range items {
		d.rules = append(d.rules, rule{Resource: resource(item), value: &item})
	}
}

func resource(v strictyaml.Value) (r Resource) {
	r = Resource{Policy: Distributed}
	o, ok := v.Object("name", "match", "replicas", "allocationPolicy", "maxPerContainer", "exclusiveRequests", "mixedDrivers")
	if !ok {
		return r
	}
	if f, ok := o.Require("name", "write the extended resource's, such as directx.microsoft.com/display"); ok {
		if r.Name, ok = f.Name(); ok {
			f.Obeys(checkResourceName(r.Name))
		}
	}
	if f, ok := o.Get("match"); ok {
		r.Match = match(f)
	}
	if f, ok := o.Get("replicas"); ok {
		r.Replicas = bounded(f, 1, MaxReplicas)
	}
	if f, ok := o.Get("allocationPolicy"); ok {
		r.Policy = AllocationPolicy(oneOf(f, string(Distributed), string(Packed)))
	}
	if f, ok := o.Get("maxPerContainer"); ok {
		r.MaxPerContainer = bounded(f, 1, maxRequest)
	}
	if f, ok := o.Get("exclusiveRequests"); ok {
		r.ExclusiveRequests, _ = f.Bool()
	}
	if f, ok := o.Get("mixedDrivers"); ok {
		r.MixedDrivers = oneOf(f, "refuse", "allow") == "allow"
	}
	return r
}

func bounded(v strictyaml.Value, least, most int) int {
	n, _ := strictyaml.Read(v, strictyaml.Value.Number, func(text string) (int, error) {
		return inRange(text, least, most)
	})
	return n
}

func oneOf(v strictyaml.Value, choices ...string) string {
	s, ok := v.String()
	if ok && !slices.Contains(choices, s) {
		v.Fail("%s is none of %s", strictyaml.Quote(s), strings.Join(choices, ", "))
	}
	return s
}

func match(v strictyaml.Value) (m Match) {
	o, ok := v.Object("kind", "vendor", "description", "dedicatedMemory", "driverVersion", "integrated", "detachable", "locationPath")
	if !ok {
		return m
	}
	if f, ok := o.Get("kind"); ok {
		m.Kind = oneOf(f, "display", "compute")
	}
	if f, ok := o.Get("vendor"); ok {
		for _, item := range oneOrMore(f) {
			if id, ok := strictyaml.Read(item, strictyaml.Value.Literal, parseVendor); ok && !slices.Contains(m.Vendors, id) {
				m.Vendors = append(m.Vendors, id)
			}
		}
	}
	if f, ok := o.Get("description"); ok {
		m.Descriptions = globs(f)
	}
	if f, ok := o.Get("locationPath"); ok {
		m.LocationPaths = globs(f)
	}
	if f, ok := o.Get("dedicatedMemory"); ok {
		m.MinMemory, m.MaxMemory = bounds(f, func(text string, _ bool) (uint64, error) {
			n, err := quantity.ParseBytes(text)
			if err == nil && n == 0 {
				err = errors.New("0 is no bound; leave the key out")
			}
			return n, err
		}, func(a, b uint64) bool { return a < b })
	}
	if f, ok := o.Get("driverVersion"); ok {
		m.MinDriver, m.MaxDriver = bounds(f, func(text string, upper bool) (DriverVersion, error) {
			if upper {
				return parseVersion(text, 1<<16-1)
			}
			return parseVersion(text, 0)
		}, DriverVersion.Less)
	}
	m.Integrated, m.Detachable = either(o, "integrated"), either(o, "detachable")
	return m
}

// either reads a boolean that need not be there.
func either(o strictyaml.Object, key string) *bool {
	f, ok := o.Get(key)
	if !ok {
		return nil
	}
	is, _ := f.Bool()
	return &is
}

// oneOrMore returns a list's values, or the only one.
func oneOrMore(v strictyaml.Value) []strictyaml.Value {
	if !v.IsList() {
		return []strictyaml.Value{v}
	}
	items, ok := v.Items(maxPatterns)
	if ok && len(items) == 0 {
		v.Fail("is empty, so that nothing fits; write a value or leave the key out")
	}
	return items
}

func globs(v strictyaml.Value) (patterns []string) {
	for _, item := range oneOrMore(v) {
		if pattern, ok := item.Name(); ok && item.Obeys(checkGlob(pattern)) {
			patterns = append(patterns, pattern)
		}
	}
	return patterns
}

// bounds reads a mapping of min and max.
func bounds[T comparable](v strictyaml.Value, parse func(text string, upper bool) (T, error), less func(a, b T) bool) (least, most T) {
	o, ok := v.Object("min", "max")
	if !ok {
		return least, most
	}
	var none T
	for _, bound := range []struct {
		key string
		to  *T
	}{{"min", &least}, {"max", &most}} {
		if f, ok := o.Get(bound.key); ok {
			*bound.to, _ = strictyaml.Read(f, strictyaml.Value.Literal, func(text string) (T, error) { return parse(text, bound.key == "max") })
		}
	}
	if least != none && most != none && less(most, least) {
		v.Fail("has a max that is less than its min; swap them")
	}
	return least, most
}

// checkRules notes what is wrong with the rules together.
func checkRules(rules []rule) {
	byName, byKey := map[string]rule{}, map[string]string{}
	for i, r := range rules {
		if r.value == nil {
			continue
		}
		if r.ExclusiveRequests && r.MaxPerContainer > 0 && r.MaxPerContainer < r.Replicas {
			r.value.Fail("has a maxPerContainer of %d, which is less than a whole GPU's %d replicas, so that exclusiveRequests has none; raise it or leave one of the two out", r.MaxPerContainer, r.Replicas)
		}
		for _, earlier := range rules[:i] {
			if earlier.value != nil && earlier.Match.covers(r.Match) {
				r.value.Fail("gets no GPU, because %s takes all that it would fit; put this one before it, or have that one match less", earlier.value.Path())
				break
			}
		}
		first, seen := byName[r.Name]
		if !seen {
			byName[r.Name] = r
			for _, key := range []string{allocation.EnvKey(r.Name), allocation.AnnotationKey(r.Name)} {
				if other, taken := byKey[key]; taken && other != r.Name {
					r.value.Fail("the names %s and %s are too alike: both would be told to containers by %s; choose another one", other, r.Name, key)
					break
				}
				byKey[key] = r.Name
			}
			continue
		}
		for _, part := range []struct {
			key    string
			differ bool
		}{
			{"allocationPolicy", r.Policy != first.Policy}, {"maxPerContainer", r.MaxPerContainer != first.MaxPerContainer},
			{"exclusiveRequests", r.ExclusiveRequests != first.ExclusiveRequests}, {"mixedDrivers", r.MixedDrivers != first.MixedDrivers},
		} {
			if part.differ {
				r.value.Fail("is of the resource %s as %s is, and differs in %s; write the same in both", r.Name, first.value.Path(), part.key)
			}
		}
	}
}

// covers tells whether every GPU that n fits is one that m fits too, as far as
// the two alone can say: false is no proof of the contrary.
func (m Match) covers(n Match) bool {
	within := func(outer, inner []string) bool {
		return len(outer) == 0 || len(inner) > 0 && !slices.ContainsFunc(inner, func(s string) bool {
			return !slices.ContainsFunc(outer, func(o string) bool { return strings.Trim(o, "*") == "" || strings.EqualFold(o, s) })
		})
	}
	same := func(outer, inner *bool) bool { return outer == nil || inner != nil && *outer == *inner }
	none := DriverVersion{}
	return (m.Kind == "" || m.Kind == n.Kind) &&
		(len(m.Vendors) == 0 || len(n.Vendors) > 0 && !slices.ContainsFunc(n.Vendors, func(id uint16) bool { return !slices.Contains(m.Vendors, id) })) &&
		within(m.Descriptions, n.Descriptions) && within(m.LocationPaths, n.LocationPaths) &&
		m.MinMemory <= n.MinMemory && (m.MaxMemory == 0 || n.MaxMemory != 0 && n.MaxMemory <= m.MaxMemory) &&
		(m.MinDriver == none && m.MaxDriver == none || (n.MinDriver != none || n.MaxDriver != none) &&
			!n.MinDriver.Less(m.MinDriver) && (m.MaxDriver == none || n.MaxDriver != none && !m.MaxDriver.Less(n.MaxDriver))) &&
		same(m.Integrated, n.Integrated) && same(m.Detachable, n.Detachable)
}

func (d *draft) runtimeFiles(v strictyaml.Value) {
	entries, _ := v.Entries(maxVendors)
	seen := strictyaml.Unique{}
	for _, entry := range entries {
		id, ok := strictyaml.Read(entry.Key, strictyaml.Value.Literal, parseVendor)
		if !ok {
			continue
		}
		seen.Claim(entry.Key, "vendor", vendorName(id))
		files, builtIn := vendorFiles(entry.Value, id)
		if !builtIn {
			d.without = append(d.without, id)
		}
		if len(files.Remove) > 0 || len(files.Add) > 0 {
			d.files = append(d.files, files)
		}
	}
}

func vendorFiles(v strictyaml.Value, id uint16) (files RuntimeFiles, builtIn bool) {
	files = RuntimeFiles{Vendor: id}
	o, ok := v.Object("defaults", "remove", "add")
	if !ok {
		return files, true
	}
	builtIn = true
	if f, ok := o.Get("defaults"); ok {
		builtIn, _ = f.Bool()
	}
	if f, ok := o.Get("remove"); ok {
		items, _ := f.Items(maxPatterns)
		for _, item := range items {
			if source, ok := strictyaml.Read(item, strictyaml.Value.Name, cleanSource); ok {
				files.Remove = append(files.Remove, source)
			}
		}
	}
	if f, ok := o.Get("add"); ok {
		items, _ := f.Items(maxPatterns)
		for _, item := range items {
			files.Add = append(files.Add, addedFile(item))
		}
	}
	return files, builtIn
}

// The folders of a container that runtime files go to.
const (
	system32 = "System32"
	sysWOW64 = "SysWOW64"
)

func addedFile(v strictyaml.Value) AddedFile {
	file := AddedFile{Folder: system32}
	if v.IsString() {
		file.Source, _ = strictyaml.Read(v, strictyaml.Value.Name, cleanSource)
		return file
	}
	o, ok := v.Object("source", "folder", "destination")
	if !ok {
		return file
	}
	if f, ok := o.Require("source", "write the file's path in the driver store"); ok {
		file.Source, _ = strictyaml.Read(f, strictyaml.Value.Name, cleanSource)
	}
	if f, ok := o.Get("folder"); ok {
		file.Folder = oneOf(f, system32, sysWOW64)
	}
	if f, ok := o.Get("destination"); ok {
		file.Destination, _ = strictyaml.Read(f, strictyaml.Value.Name, cleanFileName)
		if strings.ContainsAny(file.Source, "*?") {
			f.Fail("is one name for what may be several files; name the source in full or leave the destination out")
		}
	}
	return file
}

// builtInRuntimeFiles are what the drivers do not list and their users want.
func builtInRuntimeFiles() []RuntimeFiles {
	return []RuntimeFiles{{Vendor: 0x10DE, Add: []AddedFile{
		{Source: "nvidia-smi.exe", Folder: system32},
		{Source: "vulkaninfo-x64.exe", Folder: system32, Destination: "vulkaninfo.exe"},
		{Source: "vulkaninfo-x86.exe", Folder: sysWOW64, Destination: "vulkaninfo.exe"},
	}}}
}
