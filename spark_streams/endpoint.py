"""Describes how to connect to a peer: scheme, host, port, credentials and TLS, as one picklable value.

A ``Secret`` wraps a password as soon as it is read, so that no plan, log line, error or ``repr`` shows it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import quote, unquote

from spark_streams.errors import OptionError
from spark_streams.protocols import PROTOCOLS, Protocol, protocol_of
from spark_streams.redaction import safe_text
from spark_streams.secrets import Secret as Secret

DEFAULT_PORTS: Final = {scheme: port for entry in PROTOCOLS.values() for scheme, port in entry.ports.items()}
"""Scheme to the port of a url that names none."""

AMQP_SCHEMES: Final = PROTOCOLS["amqp"].schemes
RABBITMQ_SCHEMES: Final = PROTOCOLS["rabbitmq-stream"].schemes
"""The schemes of urls that may have a virtual host as their path."""

HTTP_SCHEMES: Final = PROTOCOLS["feedapi"].schemes
"""The schemes of urls that may have a path and a query."""

Node = tuple[str, int]
"""Host, without the brackets of an IPv6 address, and port."""

_USERINFO: Final = re.compile(r"(?<=//).*@", re.DOTALL)
_BEHIND_SCHEME: Final = re.compile(r"(?<=//).*", re.DOTALL)


@dataclass(frozen=True)
class Tls:
    """The settings of TLS.

    Args:
        ca_file: PEM file of the authorities to trust; None trusts those of the system.
        cert_file: PEM file of the client's certificate, for peers that ask for one.
        key_file: PEM file of its key; None when ``cert_file`` holds both.
        verify_hostname: whether the peer's certificate must name the host that the client connects to.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_hostname: bool = True


@dataclass(frozen=True)
class Endpoint:
    """One peer, which may have several hosts: frozen, picklable, and safe to print.

    Args:
        scheme: ``amqp``, ``amqps``, ``rabbitmq-stream``, ``rabbitmq-stream+tls``, ``http`` or ``https``.
        host: name or address, without the brackets of an IPv6 address; the first one of several.
        port: TCP port.
        username: None when the client sends no credentials.
        password: None when there is none.
        tls: None for plain TCP.
        vhost: RabbitMQ's virtual host.
        path: the path of an http url as it was written, with its first slash; empty for none.
        query: the query of an http url as it was written, without the question mark; it may hold a secret.
        token: the bearer token of an http peer, or the token that an AMQP peer takes in place of a password; or None.
        others: the further hosts of a url that lists several; all have the same credentials, TLS and virtual host.
        advertised: nodes that the peer has named; the client tries them when none of the url's hosts answers.
        is_advertised: whether the peer, and no url, has named this host.
        load_balancer: whether the url names a load balancer, where each connection may reach another node. The client
            then connects through it only, and never to the nodes' own addresses.
        option: the option that names the peer, for messages.
        transport: the carrier of the protocol's bytes: ``tcp``, or ``websocket`` on top of it.
        via: a gateway that connections go to in place of the host, while the protocol still names the host; None
            without a gateway.
    """

    scheme: str
    host: str
    port: int
    username: str | None = None
    password: Secret | None = field(default=None)
    tls: Tls | None = None
    vhost: str = "/"
    path: str = ""
    query: Secret | None = field(default=None)
    token: Secret | None = field(default=None)
    others: tuple[Node, ...] = ()
    advertised: tuple[Node, ...] = ()
    is_advertised: bool = False
    load_balancer: bool = False
    option: str = "url"
    transport: Literal["tcp", "websocket"] = "tcp"
    via: Node | None = None

    @property
    def protocol(self) -> Protocol:
        """The entry of ``PROTOCOLS`` that has the endpoint's scheme."""
        found = protocol_of(self.scheme)
        assert found is not None, "clients take the schemes of the protocols only"
        return found

    @property
    def address(self) -> str:
        """``host:port`` as people write it, for messages; commas separate several hosts, ``via`` is the gateway.

        A host that the peer has named may hold our secrets; they are hidden.
        """
        return self._authority if self.via is None else f"{self._authority} via {_written(self.via)}"

    @property
    def _authority(self) -> str:
        authority = ",".join(_written(node) for node in ((self.host, self.port), *self.others))
        return safe_text(authority) if self.is_advertised else authority

    @property
    def dialled(self) -> Node:
        """The host and port that a connection goes to."""
        return self.via or (self.host, self.port)

    @property
    def tls_name(self) -> str:
        """The name that the certificate must hold: a gateway's, unless that is an IP address, else the host's."""
        if self.via is None:
            return self.host
        try:
            ipaddress.ip_address(self.via[0])
        except ValueError:
            return self.via[0]
        return self.host

    @property
    def http_host(self) -> str:
        """The value of HTTP's header ``Host``: the name of the certificate, with the port."""
        return _written((self.tls_name, self.dialled[1]))

    @property
    def hosts(self) -> tuple[Endpoint, ...]:
        """One endpoint for each host of the url, in its order."""
        nodes = ((self.host, self.port), *self.others)
        return tuple(self.at(node, is_advertised=self.is_advertised) for node in nodes)

    @property
    def url(self) -> str:
        """The url without credentials and without the query; a virtual host other than ``/`` is its path."""
        path = self.path if self.vhost == "/" else f"/{quote(self.vhost, safe='')}"
        return f"{self.scheme}://{self._authority}{path}"

    def __str__(self) -> str:
        return self.url

    def with_credentials(self, username: str | None, password: Secret | None) -> Endpoint:
        """Return this endpoint with other credentials."""
        return replace(self, username=username, password=password)

    def with_token(self, token: Secret | None) -> Endpoint:
        """Return this endpoint with another bearer token."""
        return replace(self, token=token)

    def on_port(self, port: int) -> Endpoint:
        """Return this endpoint with another port of its host, and of each further host that has the same port."""
        others = tuple((host, port if its == self.port else its) for host, its in self.others)
        return replace(self, port=port, others=others)

    def reached(self, transport: Literal["tcp", "websocket"], via: Node | None) -> Endpoint:
        """Return this endpoint with another transport and gateway."""
        return replace(self, transport=transport, via=via)

    def with_tls(self, tls: Tls | None) -> Endpoint:
        """Return this endpoint with other TLS settings."""
        return replace(self, tls=tls)

    def with_advertised(self, nodes: Iterable[Node]) -> Endpoint:
        """Return this endpoint with the nodes that the peer has named; behind a load balancer, with none of them."""
        return replace(self, advertised=() if self.load_balancer else tuple(nodes))

    def at(self, node: Node, *, is_advertised: bool = True) -> Endpoint:
        """Return the endpoint of one node, with this one's scheme, credentials and TLS.

        Args:
            node: the node's host and port.
            is_advertised: whether the peer, and not the user, has named the node.
        """
        return replace(self, host=node[0], port=node[1], others=(), advertised=(), is_advertised=is_advertised)


def _written(node: Node) -> str:
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def redact_url(url: str) -> str:
    """Return ``url`` with ``***@`` in place of all that precedes the host, and ``?***`` in place of its query.

    An at sign after a question mark may belong to the credentials or to the query: then all but the scheme is hidden.
    """
    before, mark, query = url.partition("?")
    if "@" in query:
        return _BEHIND_SCHEME.sub("***", url)
    return _USERINFO.sub("***@", before) + ("?***" if mark else "")


def parse_url(url: str, *, schemes: Collection[str] = AMQP_SCHEMES, option: str = "url") -> Endpoint:
    """Read ``scheme://[user[:password]@]host[:port][,host[:port]…]``; user and password may be percent-encoded.

    A url of RabbitMQ may end with ``/vhost``, percent-encoded; nothing and ``/`` alone mean the virtual host ``/``.
    A url of http may end with any path and query, and has one host.

    Args:
        url: what the user wrote.
        schemes: the schemes that are allowed here.
        option: the option's name, for messages.

    Returns:
        An endpoint; its ``tls`` is ``Tls()`` for a scheme that means TLS, else None.

    Raises:
        OptionError: the url is wrong; the message names the fault, and never holds the credentials.
    """
    scheme, separator, rest = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in schemes:
        # Without a known scheme, the text before the first colon may be a user's name: show none of it.
        shown = f"scheme '{scheme}'" if separator and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) else "no scheme"
        of_another = protocol_of(scheme) if separator else None
        hint = "" if of_another is None else f"; {scheme}:// is for format '{of_another.format}'"
        raise OptionError(option, f"{shown} where one of {_listing(schemes)} was expected, {_example(schemes)}{hint}")
    protocol = protocol_of(scheme)
    what_follows = "none" if protocol is None else protocol.path
    path = query = ""
    if what_follows == "any":
        rest, path, query = _path_and_query(rest, scheme, option)
    userinfo, at, hostport = rest.rpartition("@")
    shown = redact_url(f"{scheme}://{rest}")
    if not hostport.strip("/") or hostport.startswith("/"):
        raise OptionError(option, f"{shown} names no host, expected {_example((scheme,))}")
    vhost = "/"
    if what_follows == "virtual host":
        hostport, _, host_path = hostport.partition("/")
        vhost = _vhost(host_path, shown, option)
    if re.search(r"[/?#]", hostport.rstrip("/")):
        raise OptionError(
            option, f"{shown} has a path, query or fragment after the host; the stream goes into option 'stream'"
        )
    if re.search(r"@[^@]*,", userinfo):
        raise OptionError(
            option,
            "credentials stand once, before the first host: user:password@host,host; an '@' or ',' in a user name or "
            "password is to be percent-encoded (%40, %2C)",
        )
    nodes = [_host_and_port(each, scheme, shown, option) for each in hostport.rstrip("/").split(",")]
    (host, port), *others = dict.fromkeys(nodes)
    if others and what_follows == "any":
        raise OptionError(option, f"{shown} lists {len(nodes)} hosts, and a feed has one address")
    if at and re.search(r"[/?#]", userinfo):
        raise OptionError(option, "a '/', '?' or '#' in the user name or password is to be percent-encoded")
    user, colon, word = userinfo.partition(":")
    return Endpoint(
        scheme,
        host,
        port,
        unquote(user) if at else None,
        Secret(unquote(word)) if colon else None,
        Tls() if protocol is not None and scheme == protocol.tls_scheme else None,
        vhost,
        path,
        Secret(query) if query else None,
        others=tuple(others),
    )


def with_tls_scheme(url: str) -> str:
    """Return ``url`` with the TLS scheme in place of its plain one; return a url of another scheme unchanged."""
    scheme, separator, rest = url.strip().partition("://")
    secured = {entry.scheme: entry.tls_scheme for entry in PROTOCOLS.values()}
    return f"{secured.get(scheme.lower(), scheme)}{separator}{rest}"


def _path_and_query(rest: str, scheme: str, option: str) -> tuple[str, str, str]:
    """Split the text after ``//`` of an http url into authority, path and query."""
    authority, path, query = re.fullmatch(r"([^/?]*)(.*?)(?:\?(.*))?", rest, re.DOTALL).group(1, 2, 3)  # type: ignore[union-attr]
    if "#" in rest:
        raise OptionError(option, f"{scheme}://… has a fragment ('#…'), which no server is told: leave it out")
    if re.search(r"\s", rest):
        raise OptionError(option, f"{scheme}://… has a blank in it: it is to be percent-encoded (%20)")
    return authority, path, query or ""


def _vhost(path: str, shown: str, option: str) -> str:
    """Return the virtual host that a url's path, given without its first slash, means."""
    if not path:
        return "/"
    if re.search(r"[/?#]", path):
        raise OptionError(
            option,
            f"{shown} has more than a virtual host after the host: a '/', '?' or '#' in its name is to be "
            "percent-encoded ('/' is %2F), and the stream goes into option 'stream'",
        )
    try:
        if re.search(r"%(?![0-9a-fA-F]{2})", path):
            raise ValueError(path)
        return unquote(path, errors="strict")
    except ValueError:
        raise OptionError(
            option, f"{shown} has a virtual host that is not percent-encoded UTF-8, expected such as /team%2Fa"
        ) from None


def _host_and_port(hostport: str, scheme: str, shown: str, option: str) -> Node:
    if hostport.startswith("["):
        host, bracket, after = hostport[1:].partition("]")
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            bracket = ""
        if not bracket or (after and not after.startswith(":")):
            expected = f"expected such as [::1]{_port_of(scheme)}"
            raise OptionError(option, f"{shown} has no IPv6 address in its brackets, {expected}")
        port_text = after[1:]
    else:
        host, _, port_text = hostport.partition(":")
    if not host:
        no_host = f"{shown} names no host, or none beside a comma, expected {_example((scheme,))}"
        raise OptionError(option, no_host)
    if re.search(r"[\s\\]", host):
        raise OptionError(option, f"{shown} has a blank or backslash in its host, expected {_example((scheme,))}")
    if not port_text:
        protocol = protocol_of(scheme)
        if protocol is None:
            raise OptionError(option, f"{shown} names no port, and there is none that '{scheme}' means")
        return host, protocol.ports[scheme]
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65_535:
        raise OptionError(option, f"{shown} has port '{port_text}', expected a number from 1 to 65535")
    return host, int(port_text)


def _listing(schemes: Collection[str]) -> str:
    return " or ".join(f"'{s}'" for s in sorted(schemes))


def _example(schemes: Collection[str]) -> str:
    scheme = sorted(schemes)[0]
    if scheme in HTTP_SCHEMES:
        return f"such as {scheme}://localhost:8080/orders"
    return f"such as {scheme}://user:password@localhost{_port_of(scheme)}"


def _port_of(scheme: str) -> str:
    """Return the usual port of a scheme with its colon; an empty text for a scheme that has none."""
    return f":{DEFAULT_PORTS[scheme]}" if scheme in DEFAULT_PORTS else ""
