{{- define "warpseal.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "warpseal.selector" -}}
app.kubernetes.io/name: warpseal
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warpseal.labels" -}}
{{ include "warpseal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /*
The config file. A secret in it is an error, since everyone who may read a ConfigMap would see it. Providers give keys as
user or password of a URL, as a parameter, or as a long part of the path, which otherwise only the id of a chain is.
*/}}
{{- define "warpseal.config" -}}
{{- $text := regexReplaceAll "/ext/bc/[A-Za-z0-9]+" (toJson .Values.config) "/ext/bc/id" }}
{{- $user := `://[^/@"]*@` }}
{{- $parameter := `(?i)://[^"]*(\?|&|\\u0026)[^"=]*(key|token|secret|auth|pass)[^"=]*=` }}
{{- $path := `://[^"?]*/[A-Za-z0-9_-]{20,}` }}
{{- range list `"(http-headers|query-parameters)":\{"` $user $parameter $path }}
{{- if regexMatch . $text }}
{{- fail "config holds http-headers, query-parameters, a password or a key in a URL, which a ConfigMap would show: put the setting into the Secret that `secret` names, such as WARPSEAL_P_CHAIN_API or WARPSEAL_STORE_URL" }}
{{- end }}
{{- end }}
{{- toPrettyJson .Values.config }}
{{- end }}

{{- /* Ports of the daemon: those of the config file, of which the last two are open only if it names them. */}}
{{- define "warpseal.ports" -}}
http: {{ index .Values.config "api-port" | default 8080 | int }}
metrics: {{ index .Values.config "metrics-port" | default 8081 | int }}
{{- with index .Values.config "grpc-port" }}
grpc: {{ int . }}
{{- end }}
{{- with index .Values.config "metrics-api-port" }}
usage: {{ int . }}
{{- end }}
{{- end }}

{{- /* What all pods have. The same user as in the image; no rights, no token, no variables of other services. */}}
{{- define "warpseal.pod" -}}
serviceAccountName: {{ include "warpseal.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # Else each start would make the files of an existing volume, and so the key, readable by the group.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "warpseal.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- with .Values.secret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- define "warpseal.mounts" -}}
- name: config
  mountPath: /etc/warpseal
  readOnly: true
- name: data
  mountPath: /data
{{- end }}

{{- define "warpseal.config-volume" -}}
- name: config
  configMap:
    name: {{ include "warpseal.name" . }}
{{- end }}
