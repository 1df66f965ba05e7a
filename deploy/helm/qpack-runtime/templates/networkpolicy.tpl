{{- if .Values.networkPolicy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "qpack.name" . }}
  labels:
    {{- include "qpack.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "qpack.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - ports:
        - {protocol: TCP, port: http}
      {{- with .Values.networkPolicy.from }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- if .Values.bundle.oci }}
  egress:
    - ports:
        - {protocol: TCP, port: {{ .Values.networkPolicy.registry.port }}}
      {{- with .Values.networkPolicy.registry.to }}
      to:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    - ports: # names
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
      to:
        - namespaceSelector:
            matchLabels: {kubernetes.io/metadata.name: kube-system}
  {{- else }}
  egress: []
  {{- end }}
{{- end }}
