{{/* The name of every object: the release's, with "addnorm" in it. KEDA puts 9 characters before it. */}}
{{- define "addnorm.name" -}}
{{- if contains "addnorm" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}{{ printf "%s-addnorm" (.Release.Name | trunc 45 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "addnorm.selector" -}}
app.kubernetes.io/name: addnorm
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "addnorm.metadata" -}}
name: {{ include "addnorm.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "addnorm.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Which series are of this release; the Prometheus Operator adds both labels. */}}
{{- define "addnorm.series" -}}
namespace="{{ .Release.Namespace }}",service="{{ include "addnorm.name" . }}"
{{- end }}

{{- define "addnorm.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{/* Of the server: those of the values, and its GPUs. */}}
{{- define "addnorm.resources" -}}
{{- $gpus := dict }}
{{- if .Values.gpu.count }}{{ $gpus = dict "limits" (dict "nvidia.com/gpu" .Values.gpu.count) }}{{ end }}
{{- mergeOverwrite (deepCopy .Values.resources) $gpus | toYaml }}
{{- end }}

{{- define "addnorm.scaling" -}}
scaleDown: {stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownS }}}
{{- end }}

{{/* What a schema cannot say, or would say as a pattern. */}}
{{- define "addnorm.check" -}}
{{- $bundle := .Values.bundle }}
{{- include "addnorm.checkImage" (list "image" .Values.image) }}
{{- if has $bundle.from (list "oci" "init") }}{{ include "addnorm.checkImage" (list "bundle.image" $bundle.image) }}{{ end }}
{{- if and (eq $bundle.from "pvc") (not $bundle.claim) }}{{ fail "bundle.from is pvc: name the volume claim in bundle.claim" }}{{ end }}
{{- if and $bundle.image (not (has $bundle.from (list "oci" "init"))) }}{{ fail (printf "bundle.image is set, and bundle.from is %s: with an image of bundles it is oci or init" $bundle.from) }}{{ end }}
{{- if and $bundle.claim (ne $bundle.from "pvc") }}{{ fail (printf "bundle.claim is set, and bundle.from is %s: with a claim it is pvc" $bundle.from) }}{{ end }}
{{- if not (regexMatch "^[1-9][0-9]*$" (toString .Values.resources.limits.cpu)) }}{{ fail (printf "resources.limits.cpu is %v: write whole cores, of which each has a worker thread" .Values.resources.limits.cpu) }}{{ end }}
{{- if hasKey .Values.resources.limits "nvidia.com/gpu" }}{{ fail "resources.limits has nvidia.com/gpu: use gpu.count" }}{{ end }}
{{- if and .Values.gpu.runtimeClassName (not .Values.gpu.count) }}{{ fail "gpu.runtimeClassName is set, and gpu.count is 0: it is of pods with a GPU" }}{{ end }}
{{- if gt (int .Values.autoscaling.min) (int .Values.autoscaling.max) }}{{ fail (printf "autoscaling.min is %v, above autoscaling.max, %v" .Values.autoscaling.min .Values.autoscaling.max) }}{{ end }}
{{- if and .Values.gateway.enabled (not .Values.gateway.name) }}{{ fail "gateway.enabled is true: name the Gateway in gateway.name" }}{{ end }}
{{- if eq (int .Values.service.port) (int .Values.service.grpcPort) }}{{ fail (printf "service.port and service.grpcPort are both %v: choose two ports" .Values.service.port) }}{{ end }}
{{- if and (eq (toString .Values.maxSurge) "0") (eq (toString .Values.maxUnavailable) "0") }}{{ fail "maxSurge and maxUnavailable are both 0: no update could begin" }}{{ end }}
{{- if and .Values.apiKeys.secret .Values.metrics.serviceMonitor (not .Values.apiKeys.metricsSecret) }}{{ fail "with apiKeys.secret, Prometheus needs a key of scope metrics: name its Secret in apiKeys.metricsSecret" }}{{ end }}
{{- range $name, $_ := .Values.settings }}
{{- with get (include "addnorm.ownSettings" $ | fromYaml) $name }}{{ fail (printf "settings has %s, which the chart itself sets: use %s" $name .) }}{{ end }}
{{- end }}
{{- end }}

{{/* Arguments: the value's name, the value. */}}
{{- define "addnorm.checkImage" -}}
{{- if not (regexMatch "^[^@\\s]+@sha256:[0-9a-f]{64}$" (index . 1)) }}{{ fail (printf "%s is %q: name an image by its digest, as registry/name@sha256:digest" (index . 0) (index . 1)) }}{{ end }}
{{- end }}

{{/* Settings of the chart -> what decides them. */}}
{{- define "addnorm.ownSettings" -}}
ADDNORM_PORT: service.port
ADDNORM_GRPC_PORT: service.grpcPort
{{- if not .Values.gpu.count }}
ADDNORM_WORKER_THREADS: resources.limits.cpu
{{- end }}
ADDNORM_PROVIDER: gpu.count
ADDNORM_TIMEOUT_S: timeoutS
ADDNORM_BULK_TIMEOUT_S: bulkTimeoutS
ADDNORM_GRACE_S: timeoutS
ADDNORM_API_KEYS: apiKeys.secret
ADDNORM_API_KEYS_FILE: apiKeys.secret
ADDNORM_TRUSTED_KEYS: bundle.trustedKeys
ADDNORM_TLS_CERT: the certificate of gateway or ingress
ADDNORM_TLS_KEY: the certificate of gateway or ingress
{{- end }}
