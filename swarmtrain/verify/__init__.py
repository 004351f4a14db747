"""What a state directory proves by itself, without anybody's word."""
