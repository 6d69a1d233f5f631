"""A client who asks a short question again and again until stdin ends, as a process of its own: `python -m … URL KEY
QUESTION`. Prints the seconds of each answer, and what was wrong, as JSON."""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit


def main() -> None:
    url, key, question = sys.argv[1:]
    body = json.dumps({"messages": [{"role": "user", "content": question}], "max_tokens": 4})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    seconds, wrong = [], []
    print("asks", flush=True)
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        began = time.monotonic()
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        data = answer.read().decode()
        connection.close()
        seconds.append(time.monotonic() - began)
        wrong += [data] if answer.status != 200 else []
    print(json.dumps({"seconds": seconds, "wrong": wrong}))


if __name__ == "__main__":
    main()
