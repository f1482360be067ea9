//! TUN and AF_PACKET as devices of neap-stack.
