{{- if .Values.podDisruptionBudget.enabled }}
# One at a time, so that a node with the only replica can still be drained. A pod that isn't ready stands in no one's way.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "qpack.name" . }}
  labels:
    {{- include "qpack.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "qpack.selector" . | nindent 6 }}
{{- end }}
