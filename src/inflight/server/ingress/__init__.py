"""The ingress: what stands between the network and the application, so that no client can stop or fill the server.

Two levels. Connections (below ASGI): limits of number, of headers, of time. Requests (ASGI, before the application):
who asks, from which page, how large and how slow the body.
"""
