//! The same application as each of the proxies is told of it.

use std::net::SocketAddr;
use std::path::Path;

/// nginx, with its access log off.
pub(crate) fn nginx(folder: &Path, address: SocketAddr, target: SocketAddr) -> String {
    let at = folder.display();
    format!(
        r#"daemon off;
worker_processes 2;
worker_rlimit_nofile 40000;
pid {at}/pid;
error_log {at}/log;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  server_tokens off;
  client_body_temp_path {at}/body;
  proxy_temp_path {at}/proxy;
  fastcgi_temp_path {at}/fastcgi;
  uwsgi_temp_path {at}/uwsgi;
  scgi_temp_path {at}/scgi;
  upstream target {{ server {target}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen {address} ssl http2 reuseport backlog=4096;
    server_name localhost 127.0.0.1;
    ssl_certificate {at}/chain.pem;
    ssl_certificate_key {at}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:tls:20m;
    keepalive_requests 100000000;
    keepalive_timeout 75s;
    http2_max_concurrent_streams 256;
    client_max_body_size 0;
    location /never/ {{ return 404; }}
    location / {{
      proxy_pass http://target;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Port $server_port;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Original-Host $host;
      proxy_set_header X-Original-Url $request_uri;
      proxy_set_header X-Trace-Id $request_id;
      add_header X-Content-Type-Options nosniff;
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;
    }}
  }}
}}
"#
    )
}

/// HAProxy, without a log.
pub(crate) fn haproxy(folder: &Path, address: SocketAddr, target: SocketAddr) -> String {
    let at = folder.display();
    format!(
        r"global
  nbthread 2
  maxconn 8000
  stats socket {at}/stats mode 600
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  timeout http-keep-alive 75s
frontend web
  bind {address} ssl crt {at}/identity.pem alpn h2,http/1.1
  http-request return status 404 if {{ path_beg /never/ }}
  http-request set-header X-Forwarded-For %[src]
  http-request set-header X-Forwarded-Port %[dst_port]
  http-request set-header X-Forwarded-Proto https
  http-request set-header X-Original-Host %[req.hdr(host)]
  http-request set-header X-Original-Url %[url]
  http-request set-header X-Trace-Id %[uuid()]
  http-response set-header X-Content-Type-Options nosniff
  default_backend target
backend target
  http-reuse always
  server one {target}
"
    )
}

/// The node, with its access log on; `more` is what a change adds.
pub(crate) fn ours(folder: &Path, target: SocketAddr, more: &str) -> String {
    format!(
        r#"[node]
name = "bench"
state_dir = "{at}/state"
admin_socket = "{at}/admin.sock"
workers = 2
grace_period = "1 s"

[listener.public]
bind = ["127.0.0.1:0"]
certificates = ["own"]

[certificate.own]
chain = "{at}/chain.pem"
key = "{at}/key.pem"

[limits]
connections = 20000
connections_per_source = 20000
handshakes_per_source = 1000000

[access_log]
to = "{at}/access.log"

[pool.target]
targets = ["{target}"]

[rule.web]
hosts = ["localhost", "127.0.0.1"]
priority = 10000
pool = "target"
request_headers = {{ set = {{ X-Bench = "1" }} }}
response_headers = {{ set = {{ X-Content-Type-Options = "nosniff" }} }}

[[rule.web.path]]
paths = ["/never/*"]
redirect = {{ url = "https://localhost/elsewhere" }}

{more}
"#,
        at = folder.display()
    )
}
