{{- with .Values -}}
{{- if and .bundle.store.claim (gt (int .replicas) 1) }}
{{- fail "bundle.store.claim is for one replica: two would pull into the same place. Leave it out, or install the chart once per replica" }}
{{- end }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "qpack.name" $ }}
  labels:
    {{- include "qpack.labels" $ | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  revisionHistoryLimit: 5
  # The old pod goes first: there is no second GPU for the new one to boot on.
  strategy:
    {{- if gt (int .replicas) 1 }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
    {{- else }}
    type: Recreate
    {{- end }}
  selector:
    matchLabels:
      {{- include "qpack.selector" $ | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "qpack.labels" $ | nindent 8 }}
        {{- with .podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "qpack.name" $ }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      # preStop, the answers that still run, and some for the end.
      terminationGracePeriodSeconds: {{ add 5 .server.drain 15 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
      {{- with .imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and (eq .device "cuda") .gpu.runtimeClassName }}
      runtimeClassName: {{ .gpu.runtimeClassName }}
      {{- end }}
      {{- with .priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if .bundle.oci }}
      initContainers:
        - name: pull
          image: {{ include "qpack.image" $ | quote }}
          imagePullPolicy: {{ .image.pullPolicy }}
          command:
            - qpack
            - pull
            - {{ .bundle.oci | quote }}
            - --output
            - /bundles/bundle
            {{- if .bundle.plainHttp }}
            - --plain-http
            {{- end }}
            {{- range .trust.keys }}
            - --pubkey
            - /trust/{{ . }}
            {{- end }}
            {{- with .trust.minVersion }}
            - --min-version
            - {{ . | quote }}
            {{- end }}
          {{- if .bundle.credentials }}
          env:
            - name: DOCKER_CONFIG
              value: /credentials
          {{- end }}
          resources:
            requests: {cpu: 500m, memory: 256Mi}
            limits: {memory: 512Mi}
          securityContext:
            {{- include "qpack.containerSecurity" $ | nindent 12 }}
          volumeMounts:
            - {name: bundle, mountPath: /bundles}
            - {name: tmp, mountPath: /tmp}
            {{- if .bundle.credentials }}
            - {name: credentials, mountPath: /credentials, readOnly: true}
            {{- end }}
            {{- if .trust.secret }}
            - {name: trust, mountPath: /trust, readOnly: true}
            {{- end }}
      {{- end }}
      containers:
        - name: runtime
          image: {{ include "qpack.image" $ | quote }}
          imagePullPolicy: {{ .image.pullPolicy }}
          args:
            - --model-name
            - {{ include "qpack.modelName" $ | quote }}
            - --device
            - {{ .device }}
            - --queue
            - {{ .server.queue | int | quote }}
            - --timeout
            - {{ .server.timeout | int | quote }}
            - --drain
            - {{ .server.drain | int | quote }}
            {{- if .apiKeys.secret }}
            - --api-key-file
            - /keys/{{ .apiKeys.key }}
            {{- end }}
            {{- if .trust.secret }}
            - --require-signature
            {{- range .trust.keys }}
            - --pubkey
            - /trust/{{ . }}
            {{- end }}
            {{- with .trust.minVersion }}
            - --min-version
            - {{ . | quote }}
            {{- end }}
            {{- end }}
            {{- range .server.arguments }}
            - {{ . | quote }}
            {{- end }}
          ports:
            - {name: http, containerPort: 8000}
          startupProbe:
            httpGet: {path: /startupz, port: http}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: {{ div (add .server.bootSeconds 1) 2 }}
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 2
            failureThreshold: 2
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          # Until no proxy sends requests here any more; after SIGTERM they would get 503.
          lifecycle:
            preStop:
              sleep: {seconds: 5}
          resources:
            {{- with .resources.requests }}
            requests:
              {{- toYaml . | nindent 14 }}
            {{- end }}
            {{- $gpus := eq .device "cuda" | ternary (dict .gpu.resource .gpu.count) dict }}
            {{- with merge $gpus (.resources.limits | default dict) }}
            limits:
              {{- toYaml . | nindent 14 }}
            {{- end }}
          securityContext:
            {{- include "qpack.containerSecurity" $ | nindent 12 }}
          volumeMounts:
            {{- if .bundle.oci }}
            - {name: bundle, mountPath: /bundle, subPath: bundle, readOnly: true}
            {{- else }}
            - name: bundle
              mountPath: /bundle
              readOnly: true
              {{- with .bundle.subPath }}
              subPath: {{ . | quote }}
              {{- end }}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
            {{- if .apiKeys.secret }}
            - {name: keys, mountPath: /keys, readOnly: true}
            {{- end }}
            {{- if .trust.secret }}
            - {name: trust, mountPath: /trust, readOnly: true}
            {{- end }}
      volumes:
        - name: bundle
          {{- if .bundle.hostPath }}
          hostPath: {path: {{ .bundle.hostPath | quote }}, type: Directory}
          {{- else if or .bundle.claim .bundle.store.claim }}
          persistentVolumeClaim: {claimName: {{ .bundle.claim | default .bundle.store.claim }}, readOnly: {{ not .bundle.oci }}}
          {{- else }}
          emptyDir: {sizeLimit: {{ .bundle.store.sizeLimit }}}
          {{- end }}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- if .bundle.credentials }}
        - name: credentials
          secret:
            secretName: {{ .bundle.credentials }}
            items:
              - {key: .dockerconfigjson, path: config.json}
        {{- end }}
        {{- if .apiKeys.secret }}
        - name: keys
          secret:
            secretName: {{ .apiKeys.secret }}
        {{- end }}
        {{- if .trust.secret }}
        - name: trust
          secret:
            secretName: {{ .trust.secret }}
        {{- end }}
      {{- if gt (int .replicas) 1 }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "qpack.selector" $ | nindent 14 }}
      {{- end }}
      {{- with .nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
