"""Text without what concerns nobody but its owner: for a report that goes to strangers.

Pure. What has a form is found by its form: keys, invites, links, addresses, long words of random
characters. What has none is found because it is known: names of this user, machine and its peers.
The same address or name gets the same placeholder, so that a story can still be followed. Numbers,
error ids and the beginnings of hashes stay. Not here: words that only their writer knows to be
private, such as training text; whoever gathers leaves their places out.
"""

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_KEY_BLOCK = re.compile(r"-----BEGIN [^-]*-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL)
_LINK = re.compile(r"\b([a-z][a-z0-9+]{1,9})://([^\s\"'<>/:#\[\]]*)[^\s\"'<>]*", re.IGNORECASE)
_SECRET = re.compile(
    r"(?i)\b((?:[a-z]+[_-])?(?:cookie|authorization|secret|password|passphrase|token|api[_-]?key))"
    r"(\\?[\"']?\s*[:=]\s*)(?:\"(?:[^\"\\]|\\.)*\"|[^\n]*)"
)
_DATABASE = re.compile(r"\bPostgreSQL (?!\[)[^\n]{1,80}? at (?:this machine|[^\s\"']+)")
_SERVER = re.compile(
    r"(?i)\b(server at|on socket|resolve host|for user|role|database) ([\"'])[^\"'\n]*\2"
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HARDWARE = re.compile(r"\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5,63}\b")
_USERS_FOLDER = re.compile(r"([/\\](?:home|Users)[/\\]+)[^/\\\s\"':]+")
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*)"
)
_HOST = re.compile(
    r"(?<![\w./-])(?!\w+\.py:)(?:[A-Za-z0-9-]+\.)+(?:[A-Za-z]{2,}(?=:\d{2,5}\b)"
    r"|(?:com|org|net|edu|gov|info|io|dev|ai|cloud|lan|local|home|internal|de|uk|fr|nl|ch|at|eu|us"
    r"|ca|au|jp|cn|in|br|it|es|se|no|fi|dk|pl|cz|ru)\b(?![\w(]))"
)
_HEX = re.compile(r"(?<![0-9A-Za-z])([0-9a-fA-F]{8})[0-9a-fA-F]{16,}")
_MIXED = r"(?<![{0}])(?=[{0}]*\d)(?=[{0}]*[a-z])(?=[{0}]*[A-Z])[{0}]{{{1},}}={{0,2}}"
_RANDOM = re.compile(_MIXED.format(r"\w+-", 20) + "|" + _MIXED.format(r"\w+/", 38), re.ASCII)

_COMMON = frozenset({"root", "user", "admin", "ubuntu", "debian", "pi", "localhost", "swarmtrain"})
"""Names that tell nobody apart; some are words of this program."""

_SHORT = 3
"""A name of fewer letters is replaced only where it stands in quotes."""


class Scrubber:
    """Replaces, and remembers by what.

    Args:
        home: the user's home folder; "" for none.
        people: names of this user and machine.
        secrets: secrets that are known; each of their lines goes.
    """

    def __init__(
        self,
        home: str = "",
        people: Iterable[str] = (),
        peers: Iterable[str] = (),
        secrets: Iterable[str] = (),
        places: Iterable[str] = (),
    ) -> None:
        self._known: dict[str, str] = {}
        self._hosts: set[str] = set()
        exact = [(line, "[secret]") for one in secrets for line in one.split() if len(line) > 7]
        exact += [(one, f"[directory {number}]") for number, one in enumerate(places, 1)]
        exact += [(home, "~")] if len(home) > 1 else []
        self._exact = sorted(exact, key=lambda one: -len(one[0]))
        names = {name: "[name]" for name in people}
        names |= {name: f"[peer {number}]" for number, name in enumerate(sorted(set(peers)), 1)}
        self._names = [
            (_name(name), said)
            for name, said in sorted(names.items(), key=lambda one: -len(one[0]))
            if name and name.lower() not in _COMMON
        ]

    def text(self, text: str) -> str:
        """The text, scrubbed. What is learnt of it is found in later texts, and in it once more."""
        for word, said in self._exact:
            text = text.replace(word, said)
        text = _KEY_BLOCK.sub("[key]", text)
        text = _LINK.sub(self._link, text)
        text = _DATABASE.sub("PostgreSQL [database]", text)
        text = _SERVER.sub(r"\1 \2[name]\2", text)
        text = _SECRET.sub(_without_value, text)
        text = _MAIL.sub("[mail]", text)
        text = _HARDWARE.sub("[hardware address]", text)
        text = _USERS_FOLDER.sub(r"\1[name]", text)
        text = _ADDRESS.sub(self._address, text)
        text = _HOST.sub(lambda found: self._host(found[0]), text)
        text = self.hosts(text)
        text = _HEX.sub(r"\1...", text)
        text = _RANDOM.sub("[random word]", text)
        for pattern, said in self._names:
            text = pattern.sub(said, text)
        return text

    def hosts(self, text: str) -> str:
        """The text without the hosts that are known by now."""
        for word in self._hosts:
            pattern = rf"(?<![\w-]){re.escape(word)}(?![\w-])"
            text = re.sub(pattern, self._known[word], text, flags=re.IGNORECASE)
        return text

    def value(self, value: Any) -> Any:
        """A value of JSON, keys too, scrubbed; what lies under a word for a secret goes."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): "[secret]" if _SECRET.match(f"{key}=") else self.value(one)
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def _link(self, found: re.Match[str]) -> str:
        """An invite, or another link; its host is known from now on."""
        scheme, host = found[1].lower(), found[2]
        if "." in host and not host.replace(".", "").isdigit():
            self._host(host)
        return "[invite]" if scheme == "swarm" else f"[{scheme} link]"

    def _host(self, host: str) -> str:
        self._hosts.add(host.lower())
        return self._placeholder("host", host.lower())

    def _address(self, found: re.Match[str]) -> str:
        for word in (found[0], found[0].rstrip(".:"), found[0].strip(".:")):
            with suppress(ValueError):
                address = ipaddress.ip_address(word)
                if address.is_loopback or address.is_unspecified:
                    break
                return found[0].replace(word, self._placeholder("address", str(address)))
        return found[0]

    def _placeholder(self, kind: str, word: str) -> str:
        count = sum(said.startswith(f"[{kind} ") for said in self._known.values())
        return self._known.setdefault(word, f"[{kind} {count + 1}]")


def _without_value(found: re.Match[str]) -> str:
    is_quoted = found[0][len(found[1] + found[2]) :].startswith('"')
    return f'{found[1]}{found[2]}"[secret]"' if is_quoted else f"{found[1]}{found[2]}[secret]"


def _name(name: str) -> re.Pattern[str]:
    """Find a name where it stands alone."""
    escaped = re.escape(name)
    if len(name) < _SHORT:
        return re.compile(rf"(?<=[\"']){escaped}(?=[\"'])", re.IGNORECASE)
    return re.compile(rf"(?<![^\W_]){escaped}(?![^\W_])", re.IGNORECASE)
