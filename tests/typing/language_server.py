"""The language server of pyright, asked as editors ask it."""

import itertools
import json
import pathlib
import subprocess
import sys


class LanguageServer:
    """A running server of a folder; lines and columns count from 0."""

    def __init__(self, folder, environment):
        self._folder = folder
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            [pathlib.Path(sys.executable).with_name("basedpyright-langserver"), "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        workspace = {"uri": folder.as_uri(), "name": folder.name}
        markdown = {"hover": {"contentFormat": ["markdown"]}}
        self._ask(
            "initialize",
            processId=None,
            rootUri=folder.as_uri(),
            workspaceFolders=[workspace],
            capabilities={"textDocument": markdown, "workspace": {"configuration": True}},
        )
        self._tell("initialized")

    def open(self, name, text):
        uri = (self._folder / name).as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self._tell("textDocument/didOpen", textDocument=document)
        return uri

    def completions(self, uri, line, column):
        found = self._ask_at("textDocument/completion", uri, line, column)
        return [item["label"] for item in found["items"]]

    def hover(self, uri, line, column):
        return self._ask_at("textDocument/hover", uri, line, column)["contents"]["value"]

    def _ask_at(self, method, uri, line, column):
        position = {"line": line, "character": column}
        return self._ask(method, textDocument={"uri": uri}, position=position)

    def _ask(self, method, **params):
        number = next(self._numbers)
        self._send(id=number, method=method, params=params)
        while (message := self._receive()).get("id") != number or "method" in message:
            if "id" in message:  # a question of the server
                items = message["params"].get("items", []) if "params" in message else []
                result = [{"pythonPath": sys.executable} for _ in items] or None
                self._send(id=message["id"], result=result)
        return message["result"]

    def _tell(self, method, **params):
        self._send(method=method, params=params)

    def _send(self, **message):
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._process.stdin.flush()

    def _receive(self):
        length = 0
        while line := self._process.stdout.readline().strip():
            if line.startswith(b"Content-Length:"):
                length = int(line.split(b":")[1])
        return json.loads(self._process.stdout.read(length))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.kill()
        self._process.communicate()
