"""The processes of a server: the first one (`supervisor`), API processes (`child`), and the messages between them."""
