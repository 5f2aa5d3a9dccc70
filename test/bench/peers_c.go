package main

// The peers written in C and C++. Each forwards Host and sets X-Forwarded-For and
// X-Forwarded-Proto, keeps its upstream connections, and uses two threads or workers.

var nginxPeer = peer{
	name:    nameNginx,
	note:    "2 workers, 512 kept upstream connections, buffered access log on; 64 KiB buffers for /big, no buffering for event streams",
	find:    onPath("nginx"),
	version: []string{"-v"},
	config:  "nginx.conf",
	args: func(s site, config string) []string {
		return []string{"-p", s.Dir, "-c", config, "-e", s.Dir + "/error.log"}
	},
	text: `daemon off;
worker_processes 2;
worker_rlimit_nofile 20000;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
pid {{.Dir}}/nginx.pid;
{{if .Root}}user root root;
{{end}}events {
	worker_connections 16000;
}
http {
	log_format main '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time';
	access_log {{.Log}} main buffer=64k flush=1s;
	client_body_temp_path {{.Dir}}/body;
	proxy_temp_path {{.Dir}}/proxy;
	fastcgi_temp_path {{.Dir}}/fastcgi;
	uwsgi_temp_path {{.Dir}}/uwsgi;
	scgi_temp_path {{.Dir}}/scgi;
	keepalive_requests 1000000000;
	keepalive_timeout 75s;
	tcp_nodelay on;
	map $http_upgrade $upgraded {
		default upgrade;
		"" "";
	}
	upstream calls {
		server 127.0.0.1:{{.GRPC}};
		keepalive 512;
		keepalive_requests 1000000000;
	}
	upstream up {
		server 127.0.0.1:{{.Upstream}};
		keepalive 512;
		keepalive_requests 1000000000;
	}
	server {
		listen 127.0.0.1:{{.Plain}} backlog=4096;
		listen 127.0.0.1:{{.TLS}} ssl http2 backlog=4096;
		ssl_certificate {{.Cert}};
		ssl_certificate_key {{.Key}};
		ssl_session_cache shared:tls:10m;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
		proxy_set_header Host $http_host;
		proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
		proxy_set_header X-Forwarded-Proto $scheme;
		location / {
			proxy_pass http://up;
		}
		location /ws {
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $upgraded;
			proxy_pass http://up;
		}
		location /bench.Echo/ {
			grpc_pass grpc://calls;
		}
		location /big {
			proxy_buffer_size 64k;
			proxy_buffers 8 64k;
			proxy_busy_buffers_size 128k;
			proxy_pass http://up;
		}
		location /sse {
			proxy_buffering off;
			proxy_pass http://up;
		}
		location /paced {
			proxy_buffering off;
			proxy_read_timeout 1h;
			proxy_pass http://up;
		}
	}
}
stream {
	server {
		listen 127.0.0.1:{{.TCP}} backlog=4096;
		proxy_pass 127.0.0.1:{{.EchoTCP}};
		tcp_nodelay on;
	}
	server {
		listen 127.0.0.1:{{.UDP}} udp reuseport;
		proxy_pass 127.0.0.1:{{.EchoUDP}};
	}
}
`,
}

var haproxyPeer = peer{
	name:    nameHAProxy,
	note:    "nbthread 2, http-reuse always, no log",
	find:    onPath("haproxy"),
	version: []string{"-v"},
	config:  "haproxy.cfg",
	args:    func(_ site, config string) []string { return []string{"-db", "-f", config} },
	text: `global
	nbthread 2
	no strict-limits
	maxconn 10500
defaults
	mode http
	maxconn 10500
	http-reuse always
	timeout connect 5s
	timeout client 75s
	timeout server 75s
	timeout http-keep-alive 75s
frontend web
	bind 127.0.0.1:{{.Plain}} backlog 4096
	bind 127.0.0.1:{{.TLS}} ssl crt {{.CertPair}} alpn h2,http/1.1 backlog 4096
	option forwardfor
	http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
	use_backend calls if { path_beg /bench.Echo/ }
	default_backend up
backend up
	server up 127.0.0.1:{{.Upstream}}
backend calls
	server calls 127.0.0.1:{{.GRPC}} proto h2
listen tcp
	mode tcp
	bind 127.0.0.1:{{.TCP}} backlog 4096
	server echo 127.0.0.1:{{.EchoTCP}}
`,
	lacks: []string{"W9"},
}

var envoyPeer = peer{
	name:    nameEnvoy,
	note:    "--concurrency 2, no access log, route timeout off",
	find:    inCache("venv/lib/python*/site-packages/envoy/_bin/envoy", "envoy"),
	version: []string{"--version"},
	config:  "envoy.yaml",
	args: func(_ site, config string) []string {
		return []string{"-c", config, "--concurrency", "2", "--base-id", "611", "-l", "warning"}
	},
	text: `{{define "filter"}}
        filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            stat_prefix: web
            codec_type: AUTO
            upgrade_configs:
            - upgrade_type: websocket
            use_remote_address: true
            http_filters:
            - name: envoy.filters.http.router
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
            route_config:
              virtual_hosts:
              - name: all
                domains: ["*"]
                routes:
                - match: { prefix: "/bench.Echo/" }
                  route: { cluster: calls, timeout: 0s }
                - match: { prefix: "/" }
                  route: { cluster: up, timeout: 0s }
{{end -}}
static_resources:
  listeners:
  - name: plain
    address: { socket_address: { address: 127.0.0.1, port_value: {{.Plain}} } }
    filter_chains:
      - {{template "filter" .}}
  - name: tls
    address: { socket_address: { address: 127.0.0.1, port_value: {{.TLS}} } }
    filter_chains:
      - transport_socket:
          name: envoy.transport_sockets.tls
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
            common_tls_context:
              alpn_protocols: [h2, http/1.1]
              tls_certificates:
              - certificate_chain: { filename: "{{.Cert}}" }
                private_key: { filename: "{{.Key}}" }
        {{- template "filter" .}}
  - name: tcp
    address: { socket_address: { address: 127.0.0.1, port_value: {{.TCP}} } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: echo
  - name: udp
    address: { socket_address: { protocol: UDP, address: 127.0.0.1, port_value: {{.UDP}} } }
    listener_filters:
    - name: envoy.filters.udp_listener.udp_proxy
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig
        stat_prefix: udp
        matcher:
          on_no_match:
            action:
              name: route
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route
                cluster: datagrams
  clusters:
  - name: echo
    type: STATIC
    load_assignment:
      cluster_name: echo
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{.EchoTCP}} } } }
  - name: datagrams
    type: STATIC
    load_assignment:
      cluster_name: datagrams
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{.EchoUDP}} } } }
  - name: calls
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds:
      - { max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options: {}
    load_assignment:
      cluster_name: calls
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{.GRPC}} } } }
  - name: up
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds:
      - { max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }
    load_assignment:
      cluster_name: up
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{.Upstream}} } } }
`,
}
