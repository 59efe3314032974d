{{/* Names. */}}

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

{{/* What tells our pods from others. It must never change for a release. */}}
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

{{- define "directx-nri.image" -}}
{{- if regexMatch "(@|:[^/]*$)" .Values.image.repository -}}
{{- fail (printf "image.repository %s has more than a name: put the tag into image.tag, or the digest into image.digest" .Values.image.repository) -}}
{{- end -}}
{{- $repository := required "image.repository must be set: push the archive of `make images` to a registry of yours, and name it without the tag, as in --set image.repository=registry.example.com/directx-nri" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* The node's places, by operating system. */}}
{{- define "directx-nri.configFolder" -}}
{{- if eq . "windows" }}C:\ProgramData\directx-nri\{{ else }}/etc/directx-nri/{{ end -}}
{{- end }}

{{/*
The content of a configuration or an inventory, as YAML. It takes value, a mapping
or a text, and what, the value's name.
*/}}
{{- define "directx-nri.parsed" -}}
{{- if kindIs "string" .value -}}
{{- $parsed := fromYaml .value -}}
{{- if hasKey $parsed "Error" -}}
{{- fail (printf "%s is no YAML: %s" .what $parsed.Error) -}}
{{- end -}}
{{- toYaml $parsed -}}
{{- else -}}
{{- toYaml .value -}}
{{- end -}}
{{- end }}

{{/*
The DaemonSets of an operating system, as a list: one for all nodes, and one for
each pool. It takes root and os. Each has

  name       of the DaemonSet and the ConfigMap
  pool       "" for the common one
  values     of the pool's label
  avoid      values of the label that are not the common one's
  config     the text of config.yaml
  inventory  the text of inventory.yaml, "" for none
  injection  runtime or kubelet
  restart    what tells whether a change of the configuration takes new pods
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
{{- fail (printf "nodePools.pools: nodes whose label %s is %s are in two pools: take that value out of one of them" $root.Values.nodePools.label .) -}}
{{- end -}}
{{- end -}}
{{- $avoid = concat $avoid $values -}}
{{- $pools = append $pools (dict "name" (printf "%s-%s" $name $pool) "pool" $pool "values" $values "avoid" list "of" $of) -}}
{{- end -}}
{{- end -}}
{{- $sets := list -}}
{{- range prepend $pools (dict "name" $name "pool" "" "values" list "avoid" $avoid "of" dict) -}}
{{- $set := omit . "of" -}}
{{- if not $root.Values.restore -}}
{{- $set = merge $set (include "directx-nri.settings" (dict "root" $root "os" $os "pool" .pool "of" .of) | fromYaml) -}}
{{- end -}}
{{- $sets = append $sets $set -}}
{{- end -}}
{{- toYaml $sets -}}
{{- end }}

{{/*
A set's config, inventory, injection and restart. It takes root, os, pool and of,
the pool's values. What is said for a pool counts more than what is said for its
operating system, and that more than what is said for all. So it does when one of them
has an inventory, and another a configuration that names one.
*/}}
{{- define "directx-nri.settings" -}}
{{- $values := .root.Values -}}
{{- $own := index $values .os -}}
{{- $where := ternary "" (printf "nodePools.pools.%s." .pool) (empty .pool) -}}
{{- $config := $values.config -}}
{{- $configName := "config" -}}
{{- $configLevel := 0 -}}
{{- $inventory := $values.inventory -}}
{{- $inventoryName := "inventory" -}}
{{- $inventoryLevel := 0 -}}
{{- range $before, $place := list (list $own (printf "%s." .os)) (list .of $where) -}}
{{- $from := first $place -}}
{{- if not (kindIs "invalid" $from.config) -}}
{{- $config = $from.config -}}
{{- $configName = printf "%sconfig" (last $place) -}}
{{- $configLevel = add1 $before -}}
{{- end -}}
{{- if not (kindIs "invalid" $from.inventory) -}}
{{- $inventory = $from.inventory -}}
{{- $inventoryName = printf "%sinventory" (last $place) -}}
{{- $inventoryLevel = add1 $before -}}
{{- end -}}
{{- end -}}
{{- $parsed := dict -}}
{{- if $config -}}
{{- $parsed = include "directx-nri.parsed" (dict "value" $config "what" $configName) | fromYaml -}}
{{- end -}}
{{- if not $values.manageConfig -}}
{{- if or $parsed $inventory -}}
{{- fail (printf "manageConfig is false, so nobody would read %s: leave it out, or set manageConfig to true" (ternary $configName $inventoryName (not (empty $parsed)))) -}}
{{- end -}}
{{- end -}}
{{- include "directx-nri.checkConfig" (dict "root" .root "os" .os "config" $parsed "given" $config "what" $configName) -}}
{{- $verbatim := kindIs "string" $config -}}
{{- $text := "" -}}
{{- if and $inventory $parsed.inventory -}}
{{- if eq (int $configLevel) (int $inventoryLevel) -}}
{{- fail (printf "%s and %s.inventory both say which inventory counts: leave one out" $inventoryName $configName) -}}
{{- else if gt (int $configLevel) (int $inventoryLevel) -}}
{{- $inventory = "" -}}
{{- end -}}
{{- end -}}
{{- if $inventory -}}
{{- $_ := set $parsed "inventory" (printf "%sinventory.yaml" (include "directx-nri.configFolder" .os)) -}}
{{- $verbatim = false -}}
{{- $described := include "directx-nri.parsed" (dict "value" $inventory "what" $inventoryName) | fromYaml -}}
{{- if kindIs "string" $inventory -}}
{{- $text = $inventory -}}
{{- else -}}
{{- range $device := $described.devices -}}
{{- $luid := get $device "luid" -}}
{{- if or (kindIs "float64" $luid) (kindIs "int64" $luid) (kindIs "int" $luid) -}}
{{- fail (printf "%s: helm has made a decimal number of a device's luid: quote it, or give the inventory as a text, as in --set-file %s=FILE" $inventoryName $inventoryName) -}}
{{- end -}}
{{- end -}}
{{- $text = toYaml (merge $described (dict "apiVersion" "directx.microsoft.com/v1alpha1" "kind" "Inventory")) -}}
{{- end -}}
{{- else if and $values.manageConfig (eq .os "linux") (not $parsed.inventory) -}}
{{- fail (printf "%s: Linux nodes need an inventory of their GPUs: give one, as in --set-file linux.inventory=FILE, or name a file that is on each node, as in --set linux.config.inventory=/etc/directx-nri/gpus.yaml" (ternary "linux" (trimSuffix "." $where) (empty $where))) -}}
{{- end -}}
{{- if $verbatim -}}
{{- range list "apiVersion" "kind" -}}
{{- if not (hasKey $parsed .) -}}
{{- fail (printf "%s is a text without %s: a text is a whole file, as `dxctl config check` takes it" $configName .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $restart := pick $parsed "inventory" "injection" "servedBy" "failOnInitError" "containerOS" "kubelet" "containerd" -}}
{{- if eq .os "linux" -}}
{{- $sockets := dict -}}
{{- range $key, $usual := dict "criSocket" "/run/containerd/containerd.sock" "nriSocket" "/var/run/nri/nri.sock" -}}
{{- if ne (index $own.containerd $key) $usual -}}
{{- $_ := set $sockets $key (index $own.containerd $key) -}}
{{- end -}}
{{- end -}}
{{- if $sockets -}}
{{- $_ := set $parsed "containerd" (merge $sockets ($parsed.containerd | default dict)) -}}
{{- $verbatim = false -}}
{{- end -}}
{{- end -}}
{{- $whole := merge $parsed (dict "apiVersion" "directx.microsoft.com/v1alpha1" "kind" "Configuration") -}}
{{- toYaml (dict
  "config" (ternary $config (toYaml $whole) $verbatim)
  "inventory" $text
  "injection" ($parsed.injection | default "runtime")
  "restart" ($restart | toJson | sha256sum | trunc 16)) -}}
{{- end }}

{{/* Refuses a configuration that this chart's pods could not follow. */}}
{{- define "directx-nri.checkConfig" -}}
{{- $what := .what -}}
{{- $config := .config -}}
{{- range $key, $why := dict
  "stateDir" "the pods use the usual folder"
  "runtimeDir" "the pods use the usual folder"
  "hostRoot" "the pods see the node's files where the chart mounts them"
  "metrics" "set the chart's metrics.port and metrics.pluginPort" -}}
{{- if hasKey $config $key -}}
{{- fail (printf "%s.%s cannot be set by the chart: %s" $what $key $why) -}}
{{- end -}}
{{- end -}}
{{- if not (kindIs "string" .given) -}}
{{- range $resource := $config.resources -}}
{{- $vendor := dig "match" "vendor" "" $resource -}}
{{- range kindIs "slice" $vendor | ternary $vendor (list $vendor) -}}
{{- if not (kindIs "string" .) -}}
{{- fail (printf "%s: helm has made a decimal number of the vendor of %s: quote it, as in '0x10DE'" $what $resource.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .os "linux" -}}
{{- range $key := list "criSocket" "nriSocket" -}}
{{- if hasKey ($config.containerd | default dict) $key -}}
{{- fail (printf "%s.containerd.%s: set linux.containerd.%s, which mounts it too" $what $key $key) -}}
{{- end -}}
{{- end -}}
{{- if $config.kubelet -}}
{{- fail (printf "%s.kubelet: set linux.podResourcesSocket, which mounts it too; the folder for device plugins is the same for every kubelet" $what) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .os "windows") .root.Values.windows.server2019 (eq ($config.assignmentMode | default "auto") "location-path") -}}
{{- fail (printf "%s.assignmentMode is location-path, which Windows Server 2019 cannot do: leave it out (auto gives containers all GPUs there), or set windows.server2019 to false" $what) -}}
{{- end -}}
{{- end }}

{{/*
Affinity: the user's, with our requirements in each of its terms, for terms are
alternatives. It takes affinity and requirements.
*/}}
{{- define "directx-nri.affinity" -}}
{{- $affinity := deepCopy (.affinity | default dict) -}}
{{- if .requirements -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $requirements := .requirements -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat $requirements (.matchExpressions | default list))) .) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- if $affinity -}}
{{- toYaml $affinity -}}
{{- end -}}
{{- end }}

{{/* What keeps a set to its nodes. It takes root and set. */}}
{{- define "directx-nri.poolRequirements" -}}
{{- $label := .root.Values.nodePools.label -}}
{{- if .set.pool -}}
- {key: {{ $label }}, operator: In, values: {{ toJson .set.values }}}
{{- else if .set.avoid -}}
- {key: {{ $label }}, operator: NotIn, values: {{ toJson .set.avoid }}}
{{- end -}}
{{- end }}

{{/* The head of a DaemonSet, up to its pods' containers. It takes root, set, os and requirements. */}}
{{- define "directx-nri.daemonSetHead" -}}
{{- $root := .root -}}
{{- $own := index $root.Values .os -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .set.name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "directx-nri.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .os }}
    {{- with .set.pool }}
    directx.microsoft.com/pool: {{ . | quote }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "directx-nri.selectorLabels" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .os }}
      {{- if .set.pool }}
      directx.microsoft.com/pool: {{ .set.pool | quote }}
      {{- else }}
    matchExpressions:
      - {key: directx.microsoft.com/pool, operator: DoesNotExist}
      {{- end }}
  {{- if $root.Values.restore }}
  # A pod whose last step fails at once is not a node that is done.
  minReadySeconds: 5
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 100%}
  {{- else }}
  updateStrategy: {{- toYaml $own.updateStrategy | nindent 4 }}
  {{- end }}
  template:
    metadata:
      labels:
        {{- with $own.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "directx-nri.selectorLabels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .os }}
        {{- with .set.pool }}
        directx.microsoft.com/pool: {{ . | quote }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ ternary "done" "advertiser" $root.Values.restore }}
        {{- if not $root.Values.restore }}
        # A change of the configuration takes new pods only where a program has to
        # be started anew for it.
        directx.microsoft.com/restart-settings: {{ .set.restart | quote }}
        {{- end }}
        {{- if and (eq .os "linux") $own.configureContainerd (not (include "directx-nri.hasAppArmorField" $root)) }}
        {{- range ternary (list "unconfigure" "uninstall" "done") (ternary (list "configure") list (ne .set.injection "kubelet")) $root.Values.restore }}
        container.apparmor.security.beta.kubernetes.io/{{ . }}: unconfined
        {{- end }}
        {{- end }}
        {{- with $own.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      nodeSelector:
        kubernetes.io/os: {{ .os }}
        {{- with $own.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "directx-nri.affinity" (dict "affinity" $own.affinity "requirements" .requirements) }}
      affinity: {{- . | nindent 8 }}
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
      # A step that is told to end while containerd restarts puts the old configuration
      # back, for which containerd has a minute (dxctl's --restart-timeout).
      terminationGracePeriodSeconds: 75
      # Nothing here asks the cluster for anything.
      automountServiceAccountToken: false
      enableServiceLinks: false
{{- end }}

{{/* Whether the cluster knows AppArmor as a field, and not as annotations. */}}
{{- define "directx-nri.hasAppArmorField" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end }}

{{/* A probe. It takes root, os, path, port, failureThreshold and periodSeconds. */}}
{{- define "directx-nri.probe" -}}
httpGet: {path: {{ .path }}, port: {{ .port }}{{ if and (eq .os "windows") (not .root.Values.metrics.enabled) }}, host: 127.0.0.1{{ end }}}
periodSeconds: {{ .periodSeconds }}
timeoutSeconds: 5
failureThreshold: {{ .failureThreshold }}
{{- end }}

{{/* Liveness and readiness. It takes root, os and port. */}}
{{- define "directx-nri.probes" -}}
livenessProbe:
  {{- include "directx-nri.probe" (merge (dict "path" "/healthz" "periodSeconds" 20 "failureThreshold" 6) .) | nindent 2 }}
readinessProbe:
  {{- include "directx-nri.probe" (merge (dict "path" "/readyz" "periodSeconds" 10 "failureThreshold" 3) .) | nindent 2 }}
{{- end }}

{{/* The ports of a container. It takes name and port. */}}
{{- define "directx-nri.ports" -}}
ports:
  - {name: {{ .name }}, containerPort: {{ .port }}}
{{- end }}

{{/*
Arguments of a container behind its own: where containerd and the shim are, where
that is not the usual place, and what the user adds. It takes own, the operating
system's values, flags, those that the program has of the ones below, and extra.
*/}}
{{- define "directx-nri.moreArgs" -}}
{{- $containerd := .own.containerd -}}
{{- $folder := .own.shim.folder -}}
{{- $usual := dict
  "config" "/etc/containerd/config.toml"
  "cri-socket" "/run/containerd/containerd.sock"
  "containerd-state" "/run/containerd"
  "nri-socket" "/var/run/nri/nri.sock"
  "to" "/usr/local/bin"
  "from" "/usr/local/bin"
  "shim" "/usr/local/bin/containerd-shim-directx-v1" -}}
{{- $shim := "" -}}
{{- if $folder -}}
{{- $shim = ternary (printf "%s/containerd-shim-directx-v1" $folder) (printf "%s\\containerd-shim-directx-v1.exe" $folder) (hasPrefix "/" $folder) -}}
{{- end -}}
{{- $places := dict
  "config" $containerd.configFile
  "cri-socket" $containerd.criSocket
  "containerd-state" $containerd.stateFolder
  "nri-socket" $containerd.nriSocket
  "service" $containerd.service
  "to" $folder
  "from" $folder
  "shim" $shim -}}
{{- $args := list -}}
{{- range .flags -}}
{{- $place := get $places . -}}
{{- if and $place (ne $place (get $usual .)) -}}
{{- $args = append $args (printf "--%s=%s" . $place) -}}
{{- end -}}
{{- end -}}
{{- with concat $args (.extra | default list) -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}
