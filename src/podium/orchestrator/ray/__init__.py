"""Back end `ray`: workers are processes on the nodes of a Ray cluster. The only package that imports ray."""
