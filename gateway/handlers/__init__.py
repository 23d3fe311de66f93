"""What a gateway answers itself, one file for each kind of thing: parse, call one function, answer."""
