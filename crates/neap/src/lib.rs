//! A user-space TCP/IP stack with small queues: workers and blocking sockets.
