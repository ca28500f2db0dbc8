"""What the pages of the web application have in common: cached loaders, the frame of a page, charts."""
