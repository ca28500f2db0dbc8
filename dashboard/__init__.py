"""Dashboard: what people see: the Streamlit app, the weekly report, the `trimtab` command, the demo."""
