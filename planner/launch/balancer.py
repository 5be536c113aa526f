"""nginx in front of replicas that the engine has no router for, or none with the planned policy.

Directives read on 2026-11-24 in https://nginx.org/en/docs/http/ngx_http_upstream_module.html (round robin, least_conn,
random, zone) and ngx_http_proxy_module.html (buffering off, so that tokens stream).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from planner.serving import Router

NGINX_IMAGE = "nginx:1.28.0"
NGINX_COMMAND = ("nginx", "-g", "daemon off;")
NGINX_CONFIG_FLAG = "-c {value}"
NGINX_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        Router.ROUND_ROBIN: "",
        Router.RANDOM: "random;",
        Router.POWER_OF_TWO: "random two least_conn;",
        Router.LEAST_REQUESTS: "least_conn;",
    }
)
"""The directive of each policy; round robin is what an upstream does by itself."""


def nginx_configuration(policy: str, port: str, hosts: Sequence[str]) -> str:
    """The configuration file: replicas as ``host:port``, and how requests are spread over them."""
    method = [f"    {NGINX_POLICIES[policy]}"] if NGINX_POLICIES[policy] else []
    return "\n".join(
        [
            "worker_processes auto;",
            "error_log stderr;",
            "events { worker_connections 8192; }",
            "http {",
            "  access_log off;",
            "  upstream replicas {",
            "    zone replicas 256k;",
            *method,
            *(f"    server {host};" for host in hosts),
            "  }",
            "  server {",
            f"    listen {port};",
            "    client_max_body_size 0;",
            "    location / {",
            "      proxy_pass http://replicas;",
            "      proxy_http_version 1.1;",
            '      proxy_set_header Connection "";',
            "      proxy_buffering off;",
            "      proxy_read_timeout 1h;",
            "    }",
            "  }",
            "}",
            "",
        ]
    )
