package simulate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"directx-nri/cmd/dxctl/terminal"
)

// maxManifestBytes is above any manifest that an API server takes.
const maxManifestBytes = 8 << 20

// maxPods bounds how many pods are simulated.
const maxPods = 4096

// Workload is what a manifest asks for pods by.
type Workload struct {
	// Kind is the object's, such as Deployment.
	Kind string
	// Name is the pods' name, or what it begins with when there may be several.
	Name, Namespace string
	// Count is how many of the pods the manifest asks for.
	Count       int
	Annotations map[string]string
	Spec        PodSpec
	// single tells that Name is a pod's whole name.
	single bool
}

// names returns the names of count pods.
func (w Workload) names(count int) []string {
	if w.single && count == 1 {
		return []string{w.Name}
	}
	first := 1
	if w.Kind == "StatefulSet" {
		first = 0
	}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", w.Name, first+i)
	}
	return names
}

// Read returns the workloads of a manifest, YAML or JSON, of one or more
// documents, and the other objects that it has, as "Service x". A container's
// field that Kubernetes does not know is an error, for it may be the one that was
// to ask for the GPU. ours are the extended resources that there are; of others,
// only those in our domain count.
func Read(r io.Reader, ours ...string) (workloads []Workload, others []string, err error) {
	// PowerShell writes a file in UTF-16 and begins it with a byte order mark;
	// kubectl reads it too.
	utf8 := transform.NewReader(r, unicode.BOMOverride(transform.Nop))
	text, err := io.ReadAll(io.LimitReader(utf8, maxManifestBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > maxManifestBytes {
		return nil, nil, fmt.Errorf("it is longer than %d bytes: no manifest is", maxManifestBytes)
	}
	m := manifest{ours: ours}
	for i, document := range documents(text) {
		data, err := yaml.YAMLToJSONStrict(document)
		if err == nil {
			err = m.add(data)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, oneLine(err))
		}
	}
	if len(m.workloads) == 0 {
		found := "nothing"
		if len(m.others) > 0 {
			found = strings.Join(m.others, ", ")
		}
		return nil, nil, fmt.Errorf("there is no pod in it, but %s: name a manifest with a Pod, Deployment, DaemonSet, StatefulSet, ReplicaSet, Job or CronJob", found)
	}
	return m.workloads, m.others, nil
}

// documents parts a YAML stream at the lines that begin with three hyphens, as
// kubectl does.
func documents(text []byte) [][]byte {
	var list [][]byte
	begin := 0
	for at := 0; at < len(text); {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if rest, ok := bytes.CutPrefix(text[at:end], []byte("---")); ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			list = append(list, text[begin:at])
			// What follows on the line belongs to the document, as YAML has it.
			begin = at + len("---")
		}
		at = end
	}
	return append(list, text[begin:])
}

type manifest struct {
	workloads []Workload
	others    []string
	ours      []string
}

// add adds the object of one document, as JSON.
func (m *manifest) add(data []byte) error {
	if string(bytes.TrimSpace(data)) == "null" {
		return nil // Comments, or nothing.
	}
	var o object
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &o); err != nil {
		return err
	}
	if o.Kind == "" {
		return errors.New("it has no kind: is it a manifest?")
	}
	what := terminal.Printable(strings.TrimSpace(o.Kind + " " + o.Metadata.Name))
	if o.APIVersion == "v1" && o.Kind == "List" {
		return m.addList(data)
	}
	w, ok, err := read(o, data)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !ok {
		m.others = append(m.others, what)
		return nil
	}
	if w.Name == "" {
		return fmt.Errorf("%s: it has no name", what)
	}
	w.Kind, w.Namespace = o.Kind, cmp.Or(o.Metadata.Namespace, "default")
	w.Spec.leaveOut(m.ours)
	if err := w.Spec.check(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	m.workloads = append(m.workloads, w)
	return nil
}

func (m *manifest) addList(data []byte) error {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &list); err != nil {
		return err
	}
	for i, item := range list.Items {
		var o object
		if kjson.UnmarshalCaseSensitivePreserveInts(item, &o) == nil && o.Kind == "List" {
			return fmt.Errorf("item %d: it is a list again", i)
		}
		if err := m.add(item); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// read returns the workload that is o, which was read from data; ok is false when
// it is none.
func read(o object, data []byte) (w Workload, ok bool, err error) {
	w = Workload{Name: cmp.Or(o.Metadata.Name, strings.TrimSuffix(o.Metadata.GenerateName, "-")), Count: 1}
	var count *int32
	switch o.APIVersion + " " + o.Kind {
	case "v1 Pod":
		var pod template
		err = decode(data, &pod)
		w.Spec, w.Annotations, w.single = pod.Spec, pod.Metadata.Annotations, o.Metadata.Name != ""
	case "apps/v1 Deployment", "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "apps/v1 DaemonSet":
		var set struct {
			Spec struct {
				Replicas *int32   `json:"replicas"`
				Template template `json:"template"`
			} `json:"spec"`
		}
		err = decode(data, &set)
		w.Spec, w.Annotations = set.Spec.Template.Spec, set.Spec.Template.Metadata.Annotations
		if o.Kind != "DaemonSet" {
			count = set.Spec.Replicas
		}
	case "batch/v1 Job":
		var job struct {
			Spec jobSpec `json:"spec"`
		}
		err = decode(data, &job)
		w.Spec, w.Annotations, count = job.Spec.Template.Spec, job.Spec.Template.Metadata.Annotations, job.Spec.Parallelism
	case "batch/v1 CronJob":
		var cron struct {
			Spec struct {
				JobTemplate struct {
					Spec jobSpec `json:"spec"`
				} `json:"jobTemplate"`
			} `json:"spec"`
		}
		err = decode(data, &cron)
		job := cron.Spec.JobTemplate.Spec
		w.Spec, w.Annotations, count = job.Template.Spec, job.Template.Metadata.Annotations, job.Parallelism
	default:
		return Workload{}, false, nil
	}
	if count != nil {
		w.Count = max(0, int(*count))
	}
	return w, true, err
}

type jobSpec struct {
	Parallelism *int32   `json:"parallelism"`
	Template    template `json:"template"`
}

// decode decodes data into what has some of an object's fields, and returns an
// error for a container's field that there is not.
func decode(data []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(unknown, func(err error) bool { return inContainer(err.Error()) })
	if i >= 0 {
		return unknown[i]
	}
	return nil
}

// inContainer tells whether a message is of one of the parts of a container that
// are described in full.
func inContainer(message string) bool {
	_, field, ok := strings.Cut(message, "ontainers[")
	if !ok {
		return false
	}
	_, field, _ = strings.Cut(field, "].")
	for _, part := range []string{"env[", "securityContext."} {
		if strings.HasPrefix(field, part) {
			return false
		}
	}
	return true
}

// wrongType is what the decoder says, in words of Go, of a value that has another
// type than Kubernetes' field.
var wrongType = regexp.MustCompile(`json: cannot unmarshal (.+?) into Go (?:struct field [^.]+\.(\S+)|value) of type \S+$`)

// oneLine returns err with its lines joined, without words of Go, and with nothing
// in it that a terminal would take for more than text.
func oneLine(err error) error {
	text := terminal.Printable(strings.Join(strings.Fields(err.Error()), " "))
	if found := wrongType.FindStringSubmatch(text); found != nil {
		kind, field := found[1], cmp.Or(found[2], "the whole document")
		text = fmt.Sprintf("%s%s is of the type %s, which Kubernetes does not take there", strings.TrimSuffix(text, found[0]), field, kind)
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}
