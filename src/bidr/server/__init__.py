"""An index over HTTP: `bidr serve INDEX` (the extra 'serve')."""
