"""Strategies: when peers exchange, what they send, what they do with the result. One paper, one
package: its face states the facts, `strategy` implements `strategies.base.Strategy`."""
