apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "qpack.name" . }}
  labels:
    {{- include "qpack.labels" . | nindent 4 }}
automountServiceAccountToken: false
