{{/* Prefix of the names of all objects. */}}
{{- define "directx-nri.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels that select the release's pods. They must never change. */}}
{{- define "directx-nri.selectorLabels" -}}
app.kubernetes.io/name: directx-nri
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "directx-nri.labels" -}}
{{ include "directx-nri.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | replace "+" "_" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- end }}

{{/* Namespace of all objects, except those of the cluster. */}}
{{- define "directx-nri.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{/*
Metadata of an object: (root, name), and optionally (labels, annotations) of its own, and
cluster for an object without a namespace. The chart's labels take precedence.
*/}}
{{- define "directx-nri.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ include "directx-nri.namespace" .root }}
{{- end }}
labels: {{- toYaml (mergeOverwrite dict (.root.Values.commonLabels | default dict) (.labels | default dict) (include "directx-nri.labels" .root | fromYaml)) | nindent 2 }}
{{- with mergeOverwrite dict (.root.Values.commonAnnotations | default dict) (.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Name of the pods' ServiceAccount, empty for the namespace's default. */}}
{{- define "directx-nri.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "directx-nri.fullname" .) "") -}}
{{- end }}

{{/* Labels of a set's ConfigMap and DaemonSet, beside the common ones: (os, set). */}}
{{- define "directx-nri.setLabels" -}}
app.kubernetes.io/component: {{ .os }}
{{- with .set.pool }}
directx.microsoft.com/pool: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "directx-nri.image" -}}
{{- $image := .Values.image -}}
{{- if regexMatch "(@|:[^/]*$)" $image.repository -}}
{{- fail (printf "image.repository %s has a tag or a digest: set image.tag or image.digest instead" $image.repository) -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* What the containers of an operating system have in common: (root, values of the system). */}}
{{- define "directx-nri.container" -}}
{{- $root := first . -}}
{{- $own := last . -}}
image: {{ include "directx-nri.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $own.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml $own.resources | nindent 2 }}
{{- end }}

{{/*
Arguments of a container, in groups of three: list of arguments, flags by name, extra
arguments. Flags with an empty value are left out.
*/}}
{{- define "directx-nri.args" -}}
{{- $args := list -}}
{{- range chunk 3 . -}}
{{- $args = concat $args (index . 0) -}}
{{- range $flag, $value := index . 1 -}}
{{- if $value -}}
{{- $args = append $args (printf "--%s=%s" $flag $value) -}}
{{- end -}}
{{- end -}}
{{- $args = concat $args (index . 2 | default list) -}}
{{- end -}}
args: {{- toYaml $args | nindent 2 }}
{{- end }}

{{/*
The sets of an operating system, as a list: one for the nodes in no pool, then one for
each pool: (root, os). A set becomes a ConfigMap and a DaemonSet:

  name       name of both
  pool       name of the pool, "" for the first set
  values     values of the pool label that select the nodes
  avoid      values of the pool label of other sets
  extraArgs  arguments of containers: those of the operating system, then those of the pool
  settings   name of the ConfigMap that the advertiser reads, "" for none
  files      files of that ConfigMap, by the flag that names them
  config     text of config.yaml, "" for none
  inventory  text of inventory.yaml, "" for none
  injection  auto, nri, shim or kubelet
  nodeFiles  whether the advertiser reads files in the node's configuration directory
  discover   whether the advertiser discovers the GPUs by /dev/dxg
*/}}
{{- define "directx-nri.sets" -}}
{{- $root := .root -}}
{{- $os := .os -}}
{{- $name := printf "%s-%s" (include "directx-nri.fullname" $root) $os -}}
{{- $avoid := list -}}
{{- $pools := list -}}
{{- range $pool, $of := $root.Values.nodePools.pools -}}
{{- $of = $of | default dict -}}
{{- if or (not $of.os) (eq $of.os $os) -}}
{{- $values := $of.values | default (list $pool) -}}
{{- range $values -}}
{{- if has . $avoid -}}
{{- fail (printf "nodePools.pools: the value %s of the label %s belongs to two pools" . $root.Values.nodePools.label) -}}
{{- end -}}
{{- end -}}
{{- $avoid = concat $avoid $values -}}
{{- $pools = append $pools (dict "name" (printf "%s-%s" $name $pool) "pool" $pool "values" $values "avoid" list "of" $of) -}}
{{- end -}}
{{- end -}}
{{- $sets := list -}}
{{- range prepend $pools (dict "name" $name "pool" "" "values" list "avoid" $avoid "of" dict) -}}
{{- $of := .of -}}
{{- $set := omit . "of" -}}
{{- $extraArgs := dict -}}
{{- range $container := list "nri" "advertiser" -}}
{{- $_ := set $extraArgs $container (concat (index ((index $root.Values $os).extraArgs | default dict) $container | default list) (index ($of.extraArgs | default dict) $container | default list)) -}}
{{- end -}}
{{- $set = set $set "extraArgs" $extraArgs -}}
{{- $set = merge $set (include "directx-nri.settings" (dict "root" $root "os" $os "pool" .pool "of" .of "name" .name) | fromYaml) -}}
{{- $sets = append $sets $set -}}
{{- end -}}
{{- toYaml $sets -}}
{{- end }}

{{/*
Configuration and inventory of a set: (root, os, pool, of, name), where of has the pool's
values. A mapping is merged over the mappings before it, in the order: common, operating
system, pool. A text or an existing ConfigMap replaces what is before it, and so does every
inventory.
*/}}
{{- define "directx-nri.settings" -}}
{{- $config := dict -}}
{{- $text := "" -}}
{{- $isSet := false -}}
{{- $inventory := "" -}}
{{- $inventoryName := "" -}}
{{- /* The place of each key, for messages. */ -}}
{{- $from := dict -}}
{{- $own := index .root.Values .os -}}
{{- range $place := list (list "" .root.Values) (list (printf "%s." .os) $own) (list (printf "nodePools.pools.%s." .pool) .of) -}}
{{- $name := printf "%sconfig" (first $place) -}}
{{- $values := last $place -}}
{{- $layer := $values.config -}}
{{- if kindIs "string" $layer -}}
{{- $text = $layer -}}
{{- $layer = include "directx-nri.parse" (list $name $text) | fromYaml -}}
{{- if not (and $layer.apiVersion $layer.kind) -}}
{{- fail (printf "%s: the text is not a complete config.yaml: apiVersion or kind is missing" $name) -}}
{{- end -}}
{{- $config = dict -}}
{{- else if kindIs "map" $layer -}}
{{- if or $layer.existing $config.existing -}}
{{- $config = dict -}}
{{- end -}}
{{- $text = "" -}}
{{- end -}}
{{- if not (kindIs "invalid" $layer) -}}
{{- $isSet = true -}}
{{- $config = mergeOverwrite $config (deepCopy $layer) -}}
{{- range keys $layer -}}
{{- $_ := set $from . (printf "%s.%s" $name .) -}}
{{- end -}}
{{- end -}}
{{- if not (kindIs "invalid" $values.inventory) -}}
{{- $inventory = $values.inventory -}}
{{- $inventoryName = printf "%sinventory" (first $place) -}}
{{- end -}}
{{- end -}}
{{- if and $isSet (not $text) (not $config.existing) -}}
{{- $text = toYaml (merge (dict "apiVersion" "directx.microsoft.com/v1alpha1" "kind" "Configuration") $config) -}}
{{- end -}}
{{- $installed := eq .os "windows" | ternary "shim" "nri" -}}
{{- $injection := $config.injection | default "auto" -}}
{{- $message := "" -}}
{{- if $config.metrics -}}
{{- $message = printf "%s: set metrics.port of the chart instead" $from.metrics -}}
{{- else if not (has $injection (list "auto" $installed "kubelet")) -}}
{{- $message = printf "%s: on %s nodes, the chart supports auto, %s and kubelet" $from.injection .os $installed -}}
{{- else if and $inventory $config.existing -}}
{{- $message = printf "%s and %s are both set: add inventory.yaml to the ConfigMap, and set inventory to its path below /directx-nri-config in config.yaml" $inventoryName $from.existing -}}
{{- else if and $inventory $config.inventory -}}
{{- $message = printf "%s and %s are both set: remove one, or replace one by '' for these nodes" $inventoryName $from.inventory -}}
{{- else if and (eq .os "linux") $text (not $inventory) (not $config.inventory) (not $own.discover) -}}
{{- $message = "Linux nodes need an inventory of their GPUs, and there is none: set linux.discover for those with /dev/dxg, or set an inventory, such as --set-file linux.inventory=FILE, or name a file on the nodes, such as --set linux.config.inventory=/etc/directx-nri/gpus.yaml" -}}
{{- else if and (eq .os "linux") (not (hasPrefix "/etc/directx-nri/" ($config.inventory | default "/etc/directx-nri/"))) -}}
{{- $message = printf "%s: %s is not in /etc/directx-nri, the only directory of the node that the advertiser can read" $from.inventory $config.inventory -}}
{{- else if and (eq .os "windows") $own.server2019 (eq ($config.assignmentMode | default "auto") "location-path") -}}
{{- $message = printf "%s: Windows Server 2019 does not support location-path: remove the key, or set windows.server2019 to false" $from.assignmentMode -}}
{{- end -}}
{{- if $message -}}
{{- fail $message -}}
{{- end -}}
{{- if and (eq .os "linux") $inventory -}}
{{- include "directx-nri.checkHostPaths" (list $inventoryName $inventory $own.hostPaths) -}}
{{- end -}}
{{- $discover := and (eq .os "linux") $own.discover (not $inventory) (not $config.inventory) -}}
{{- if $discover -}}
{{- include "directx-nri.checkHostPaths" (list "linux.discover" "devices: [{linux: {deviceNodes: [/dev/dxg], libraries: [/usr/lib/wsl]}}]" $own.hostPaths) -}}
{{- end -}}
{{- $files := dict -}}
{{- if or $text $config.existing -}}
{{- $_ := set $files "config" "config.yaml" -}}
{{- end -}}
{{- if $inventory -}}
{{- $_ := set $files "inventory" "inventory.yaml" -}}
{{- end -}}
{{- toYaml (dict "discover" $discover "config" $text "inventory" ($inventory | default "") "injection" $injection "nodeFiles" (or (not $text) (not (empty $config.inventory))) "files" $files "settings" ($config.existing | default (ternary .name "" (not (empty $files))))) -}}
{{- end }}

{{/* Parses a text: (name, text). */}}
{{- define "directx-nri.parse" -}}
{{- $parsed := fromYaml (last .) -}}
{{- with $parsed.Error -}}
{{- fail (printf "%s is not valid YAML: %s" (first $) .) -}}
{{- end -}}
{{- toYaml $parsed -}}
{{- end }}

{{/* Refuses device nodes and files that the pod would not have: (name, inventory, directories). */}}
{{- define "directx-nri.checkHostPaths" -}}
{{- $name := index . 0 -}}
{{- $directories := index . 2 -}}
{{- range $device := (include "directx-nri.parse" (list $name (index . 1)) | fromYaml).devices -}}
{{- $linux := $device.linux | default dict -}}
{{- range concat ($linux.deviceNodes | default list) ($linux.libraries | default list) -}}
{{- $path := . -}}
{{- if kindIs "map" . -}}
{{- $path = .path | default .source -}}
{{- end -}}
{{- $found := not (hasPrefix "/" $path) -}}
{{- range $directories -}}
{{- $found = or $found (hasPrefix (printf "%s/" .) (printf "%s/" $path)) -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "%s: %s is in none of linux.hostPaths: add its directory there" $name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
A DaemonSet up to the containers of its pods: (root, set, os, requirements). The
requirements for nodes are added to each term of the user's node affinity, because the
terms are alternatives.
*/}}
{{- define "directx-nri.daemonSetHead" -}}
{{- $root := .root -}}
{{- $set := .set -}}
{{- $own := index $root.Values .os -}}
{{- $requirements := .requirements -}}
{{- if $set.pool -}}
{{- $requirements = append $requirements (dict "key" $root.Values.nodePools.label "operator" "In" "values" $set.values) -}}
{{- else if $set.avoid -}}
{{- $requirements = append $requirements (dict "key" $root.Values.nodePools.label "operator" "NotIn" "values" $set.avoid) -}}
{{- end -}}
{{- $affinity := deepCopy ($own.affinity | default dict) -}}
{{- if $requirements -}}
{{- $terms := list -}}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat $requirements (.matchExpressions | default list))) .) -}}
{{- end -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms))) -}}
{{- end -}}
apiVersion: apps/v1
kind: DaemonSet
metadata: {{- include "directx-nri.metadata" (dict "root" $root "name" $set.name "labels" (include "directx-nri.setLabels" . | fromYaml)) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "directx-nri.selectorLabels" $root | nindent 6 }}
      {{- include "directx-nri.setLabels" . | nindent 6 }}
    {{- if not $set.pool }}
    matchExpressions:
      - {key: directx.microsoft.com/pool, operator: DoesNotExist}
    {{- end }}
  {{- if not (kindIs "invalid" $root.Values.revisionHistoryLimit) }}
  revisionHistoryLimit: {{ $root.Values.revisionHistoryLimit }}
  {{- end }}
  updateStrategy: {{- toYaml $own.updateStrategy | nindent 4 }}
  template:
    metadata:
      labels:
        {{- with mergeOverwrite dict ($root.Values.commonLabels | default dict) ($own.podLabels | default dict) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "directx-nri.selectorLabels" $root | nindent 8 }}
        {{- include "directx-nri.setLabels" . | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: advertiser
        {{- with $own.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      nodeSelector:
        kubernetes.io/os: {{ .os }}
        {{- with $own.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $own.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $labeler := and (eq .os "windows") $own.labels }}
      {{- with include ($labeler | ternary "directx-nri.labeler" "directx-nri.serviceAccountName") $root }}
      serviceAccountName: {{ . }}
      {{- end }}
      # The pods do not use the Kubernetes API, except for a container that mounts a token itself.
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with $own.podSecurityContext }}
      securityContext: {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}

{{/* Metrics port and probes of a container: (root, port name, port, host, whether the pod's readiness depends on it). */}}
{{- define "directx-nri.health" -}}
{{- $probes := (index . 0).Values.probes -}}
{{- $endpoint := dict "port" (index . 1) -}}
{{- with index . 3 -}}
{{- $_ := set $endpoint "host" . -}}
{{- end -}}
ports:
  - {name: {{ index . 1 }}, containerPort: {{ index . 2 }}}
livenessProbe: {{- toYaml (merge (dict "httpGet" (merge (dict "path" "/healthz") $endpoint)) ($probes.liveness | default dict)) | nindent 2 }}
{{- if index . 4 }}
readinessProbe: {{- toYaml (merge (dict "httpGet" (merge (dict "path" "/readyz") $endpoint)) ($probes.readiness | default dict)) | nindent 2 }}
{{- end }}
{{- end }}
