{{- if .Values.serviceMonitor.enabled }}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "qpack.name" . }}
  labels:
    {{- include "qpack.labels" . | nindent 4 }}
    {{- with .Values.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # The job is then named qpack-runtime in every release: the rules take jobs whose name begins with qpack.
  jobLabel: app.kubernetes.io/name
  selector:
    matchLabels:
      {{- include "qpack.selector" . | nindent 6 }}
  endpoints:
    - port: http
      path: /metrics
      interval: {{ .Values.serviceMonitor.interval }}
      scrapeTimeout: 5s
{{- end }}
