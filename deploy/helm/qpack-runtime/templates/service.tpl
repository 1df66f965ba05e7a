apiVersion: v1
kind: Service
metadata:
  name: {{ include "qpack.name" . }}
  labels:
    {{- include "qpack.labels" . | nindent 4 }}
spec:
  type: {{ .Values.service.type }}
  ports:
    - {name: http, port: {{ .Values.service.port }}, targetPort: http}
  selector:
    {{- include "qpack.selector" . | nindent 4 }}
