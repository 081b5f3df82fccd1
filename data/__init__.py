"""Text in, token ids and copy labels out: the ground every other room stands on."""
