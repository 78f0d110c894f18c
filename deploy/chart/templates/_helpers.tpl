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

{{- define "addnorm.scaling" -}}
scaleUp: {stabilizationWindowSeconds: 0}
scaleDown: {stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownS }}}
{{- end }}

{{/* What a schema cannot say, or says in words that do not help. */}}
{{- define "addnorm.check" -}}
{{- $bundle := .Values.bundle }}
{{- if not .Values.image }}{{ fail "image is not set: name your image of Addnorm, as registry/name@sha256:digest" }}{{ end }}
{{- if and (eq $bundle.from "pvc") (not $bundle.claim) }}{{ fail "bundle.from is pvc: name the volume claim in bundle.claim" }}{{ end }}
{{- if and (has $bundle.from (list "oci" "init")) (not $bundle.image) }}{{ fail (printf "bundle.from is %s: name the image of bundles in bundle.image, as registry/name@sha256:digest" $bundle.from) }}{{ end }}
{{- if gt (int .Values.autoscaling.min) (int .Values.autoscaling.max) }}{{ fail (printf "autoscaling.min is %v, above autoscaling.max, %v" .Values.autoscaling.min .Values.autoscaling.max) }}{{ end }}
{{- if and .Values.gateway.enabled (not .Values.gateway.name) }}{{ fail "gateway.enabled is true: name the Gateway in gateway.name" }}{{ end }}
{{- if and (eq (toString .Values.maxSurge) "0") (eq (toString .Values.maxUnavailable) "0") }}{{ fail "maxSurge and maxUnavailable are both 0: no update could begin" }}{{ end }}
{{- if and .Values.apiKeys.secret .Values.metrics.serviceMonitor (not .Values.apiKeys.metricsSecret) }}{{ fail "with apiKeys.secret, Prometheus needs a key of scope metrics: name its Secret in apiKeys.metricsSecret" }}{{ end }}
{{- end }}
