"""What the pages of the web application show: functions from store and state to frames, without Streamlit."""
